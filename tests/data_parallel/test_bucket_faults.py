"""What goes wrong while buckets travel is said with rank, bucket and line; nothing hangs, and nothing is left."""

from __future__ import annotations

import threading
import time

import pytest
import torch
import torch.distributed as dist
from torch import nn

from dtcourse import Deadlock, MismatchError, RankError
from dtcourse.collectives.ring import ring_all_reduce
from dtcourse.data_parallel.buckets import Reducer
from dtcourse.data_parallel.ddp_hook import all_reduce_hook

EACH = {"bucket_mib": 0, "first_bucket_mib": 0}  # a bucket for each parameter


def threads_left():
    """How many there are when those that were told to end have had a while to do so."""
    end = time.monotonic() + 10
    while (left := sum(t.name == "communication" for t in threading.enumerate())) and time.monotonic() < end:
        time.sleep(0.005)
    return left


@pytest.fixture(params=["shared_memory", "gloo"])
def cluster(cluster_of, request):
    """Usable, and with no thread left, after whatever a test does to it."""
    cluster = cluster_of(3, request.param)
    yield cluster
    assert cluster.run(threads_left).results == [0] * 3
    assert cluster.run(step, ring_all_reduce).results == [3.0] * 3


def step(all_reduce, backward=lambda loss: loss.backward(), share=None, **options):
    """One step of two layers, so of four buckets."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    reducer = Reducer(model, all_reduce, **{**EACH, **options})
    with reducer.step(share):
        backward(3 * model(torch.ones(1, 2)).sum())
    return float(model[1].bias.grad)


def under_ddp(all_reduce):
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)), bucket_cap_mb=1e-6)
    model.register_comm_hook(None, all_reduce_hook(all_reduce))
    for _ in range(2):  # after the first step it puts the parameters into buckets anew
        model.zero_grad()
        (3 * model(torch.ones(1, 2)).sum()).backward()
    return float(model.module[1].bias.grad)


WAYS = [step, under_ddp]


def test_under_ddp(cluster):
    assert cluster.run(under_ddp, ring_all_reduce).results == [3.0] * 3


@pytest.mark.parametrize("way", WAYS)
def test_an_exception_in_the_communication_thread(cluster, way):
    def broken(tensor, group=None):
        if dist.get_rank() == 1 and len(tensor) > 2:
            raise ArithmeticError("no more numbers")
        ring_all_reduce(tensor, group)

    with pytest.raises(RankError) as caught:
        cluster.run(way, broken)
    text = str(caught.value)
    assert "rank 1 raised ArithmeticError: no more numbers" in text
    assert 'raise ArithmeticError("no more numbers")' in text.splitlines()[1]
    assert "in the all-reduce of bucket" in text
    assert ("with reducer.step(share)" in text) if way is step else (".backward()" in text)


@pytest.mark.parametrize("way", WAYS)
def test_a_deadlock_of_communication_threads(cluster, way):
    def one_too_few(tensor, group=None):
        if dist.get_rank() == 2:
            return
        ring_all_reduce(tensor, group)

    with pytest.raises(Deadlock) as caught:
        cluster.run(way, one_too_few)
    assert "bucket 0" in str(caught.value) or "bucket 1" in str(caught.value)
    assert {rank for rank, *_ in caught.value.waits} & {0, 1}  # whoever waits first for one that will not come


def test_a_deadlock_at_the_readers_line(cluster):
    """Rank 0 does not take part: the others wait, and where they do is the line of the block, or of backward."""

    def function():
        if dist.get_rank() > 0:
            return step(dist.all_reduce)
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
        Reducer(model, dist.all_reduce, **EACH)
        return None

    with pytest.raises(Deadlock) as caught:
        cluster.run(function)
    text = str(caught.value)
    assert "ranks 1 and 2 wait for what will never come; rank 0 has already returned" in text
    assert "bucket 0" in text
    assert "backward" in text or "with reducer.step" in text


def test_ranks_that_disagree(cluster):
    def longer(tensor, group=None):
        dist.all_reduce(torch.ones(len(tensor) + (dist.get_rank() == 2)), group=group)

    with pytest.raises(MismatchError, match="disagree on the shape of all_reduce"):
        cluster.run(step, longer)


def test_models_that_differ(cluster):
    def function():
        Reducer(nn.Linear(2, 2 + dist.get_rank() // 2), ring_all_reduce)

    with pytest.raises(RankError, match="the parameters of rank 2 are not those of rank 0"):
        cluster.run(function)


@pytest.mark.parametrize(
    ("odd", "says"),
    [
        ({"bucket_mib": 1}, "bucket_mib is 1 on rank 1, bucket_mib is 0"),
        ({"frozen": True}, r"2\), frozen on rank 1, 0"),
    ],
)
def test_buckets_that_would_differ(cluster, odd, says):
    def function():
        options = odd if dist.get_rank() == 1 else {}
        model = nn.Sequential(nn.Linear(2, 2))
        model.requires_grad_(not options.get("frozen"))
        model.append(nn.Linear(2, 2))
        sizes = {**EACH, **{name: value for name, value in options.items() if name in EACH}}
        Reducer(model, ring_all_reduce, **sizes)

    with pytest.raises(RankError, match=f"rank 0 raised ValueError: the parameters of rank 1 .*{says}"):
        cluster.run(function)


def test_a_parameter_that_was_put_there_later(cluster):
    def function():
        model = nn.Sequential(nn.Linear(2, 2))
        reducer = Reducer(model, ring_all_reduce)
        model[0].weight = nn.Parameter(torch.ones(2, 2))
        with reducer.step():
            model(torch.ones(1, 2)).sum().backward()

    with pytest.raises(RankError, match=r"0\.weight was not trained, or not there, when this Reducer was made"):
        cluster.run(function)


def test_closing_in_a_step_is_refused(cluster):
    def function():
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
        reducer = Reducer(model, ring_all_reduce, **EACH)
        with reducer.step():
            model(torch.ones(1, 2)).sum().backward()
            with pytest.raises(RuntimeError, match="close.. inside a step"):
                reducer.close()
        return model[1].bias.grad.item()

    assert cluster.run(function).results == [1.0] * 3


@pytest.mark.parametrize("inner_first", [True, False])
def test_two_on_one_model_with_one_step_inside_the_other(cluster, inner_first):
    """Otherwise both would multiply the gradient by the share, and one while the other's bucket travels."""

    def slowly(tensor, group=None):
        time.sleep(0.01)
        ring_all_reduce(tensor, group)

    def function():
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
        inner, outer = [Reducer(model, slowly, **EACH) for _ in range(2)][:: 1 if inner_first else -1]
        with outer.step(), inner.step():
            model(torch.ones(1, 2) * 3).sum().backward()
        return model[1].bias.grad.item()

    assert cluster.run(function).results == pytest.approx([1.0] * 3)


def test_a_sparse_gradient_under_ddp(cluster):
    def function():
        table = nn.parallel.DistributedDataParallel(nn.Embedding(4, 2, sparse=True))
        table.register_comm_hook(None, all_reduce_hook(ring_all_reduce))
        table(torch.tensor([1])).sum().backward()

    with pytest.raises(RankError, match="sparse=False"):
        cluster.run(function)


@pytest.mark.parametrize("when", ["before any gradient", "after all of them", "in the middle of backward"])
def test_an_exception_in_the_block(cluster, when):
    class Breaks(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            raise ArithmeticError("in the backward")

    def function():
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
        reducer = Reducer(model, ring_all_reduce, **EACH)
        with reducer.step():
            x = model[0](torch.ones(1, 2))
            if dist.get_rank() == 1:
                if when == "before any gradient":
                    raise ArithmeticError("in the backward")
                x = Breaks.apply(x) if when != "after all of them" else x
            model[1](x).sum().backward()
            if dist.get_rank() == 1:
                raise ArithmeticError("in the backward")

    with pytest.raises(RankError, match="rank 1 raised ArithmeticError: in the backward"):
        cluster.run(function)


def test_before_anything_has_travelled_a_failed_block_does_no_harm(cluster):
    def function():
        model = nn.Linear(2, 1)
        reducer = Reducer(model, ring_all_reduce)
        for fails in (True, False):
            try:
                with reducer.step():
                    loss = model(torch.ones(2)).sum()
                    assert not fails
                    loss.backward()
            except AssertionError:
                pass
        return float(model.bias.grad)

    assert cluster.run(function).results == [1.0] * 3


REFUSED = [
    ({"share": 1.5}, "share=1.5: a rank's share of the samples is between 0 and 1"),
    ({"share": float("nan")}, "share=nan"),
    ({"bucket_mib": -1}, "buckets of -1 MiB"),
    ({"backward": lambda loss: [loss.backward(retain_graph=True) for _ in range(2)]}, "a second gradient of 1.bias"),
]


@pytest.mark.parametrize(("wrong", "why"), REFUSED, ids=[why for _, why in REFUSED])
def test_what_is_refused(cluster_of, wrong, why):
    with pytest.raises(RankError, match=why):
        cluster_of(3).run(step, ring_all_reduce, **wrong)


def test_more_that_is_refused(cluster_of):
    """Several questions in one run: what each raised."""

    def raised(function):
        try:
            function()
        except Exception as problem:
            return f"{type(problem).__name__}: {problem}"

    def function():
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
        model[0].requires_grad_(False)
        reducer = Reducer(model, ring_all_reduce)

        def nested():
            with reducer.step(), reducer.step():
                pass

        def thawed():
            model[0].requires_grad_(True)
            with reducer.step():
                pass

        def updated_inside():
            model = nn.Linear(2, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            with Reducer(model, ring_all_reduce).step():
                model(torch.ones(2)).sum().backward()
                optimizer.step()

        def averaged_twice():
            Reducer(nn.parallel.DistributedDataParallel(nn.Linear(2, 1)), ring_all_reduce)

        def more_than_all():
            parallel, hook = nn.parallel.DistributedDataParallel(nn.Linear(2, 1)), all_reduce_hook(ring_all_reduce)
            parallel.register_comm_hook(None, hook)
            hook.share = 1.5
            parallel(torch.ones(2)).sum().backward()

        nothing = nn.Linear(2, 2).requires_grad_(False)
        questions = [nested, thawed, updated_inside, averaged_twice, more_than_all]
        return [*map(raised, questions), raised(lambda: Reducer(nothing, ring_all_reduce))]

    nested, thawed, inside, twice, more, nothing = cluster_of(3).run(function).results[0]
    assert inside.startswith("RuntimeError: the parameters were changed inside the block")
    assert twice.startswith("ValueError: DistributedDataParallel averages already")
    assert more.startswith("ValueError: share=1.5: a rank's share")
    assert nested.startswith("RuntimeError: a step is on already")
    assert thawed.startswith("RuntimeError: 0.weight was not trained, or not there, when this Reducer was made")
    assert nothing.startswith("ValueError: no parameter of the model is trained")


def test_the_main_thread_may_talk_meanwhile(cluster):
    """An all-reduce of the main thread's in the middle of a step: among the buckets, at another place on each rank."""

    def function():
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
        reducer = Reducer(model, dist.all_reduce, **EACH)
        totals = []
        for _ in range(10):
            model.zero_grad()
            with reducer.step():
                loss = model(torch.ones(1, 2)).sum()
                if dist.get_rank() == 0:
                    loss.backward()
                total = torch.full((2,), 1.0)
                dist.all_reduce(total)
                totals.append(float(total[0]))
                if dist.get_rank() > 0:
                    loss.backward()
        return set(totals), float(model[1].bias.grad)

    assert cluster.run(function).results == [({3.0}, 1.0)] * 3
