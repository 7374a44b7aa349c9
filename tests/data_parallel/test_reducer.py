"""Buckets: one process's weights, whatever is awkward; the formula's bytes; one order on all ranks; no leftovers."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
import weakref
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from trainings import alone, batches, plain, trained

from dtcourse import RankError, region
from dtcourse.collectives.ring import ring_all_reduce
from dtcourse.collectives.root import root_all_reduce
from dtcourse.data_parallel.background import Background
from dtcourse.data_parallel.buckets import MIB, Reducer, assign
from dtcourse.data_parallel.ddp_hook import all_reduce_hook

BACKENDS = ["shared_memory", "gloo"]
SMALL = {"bucket_mib": 300 / MIB, "first_bucket_mib": 100 / MIB}  # smaller than a weight of 6 x 6 numbers


# -- which parameter goes into which bucket --------------------------------------------------------------------------


def parameters(*sizes, dtype=torch.float32):
    return [nn.Parameter(torch.empty(size, dtype=dtype)) for size in sizes]


def assigned(given, bucket, first):
    """As places in the list; limits in bytes."""
    return [
        [next(i for i, q in enumerate(given) if q is p) for p in b] for b in assign(given, bucket / MIB, first / MIB)
    ]


def test_buckets_are_filled_from_the_last_parameter_on():
    assert assigned(parameters(1, 1, 1, 1, 1, 1, 1), 12, 4) == [[6], [5, 4, 3], [2, 1, 0]]


def test_a_parameter_may_be_larger_than_a_bucket():
    assert assigned(parameters(1, 9, 1, 9), 12, 4) == [[3], [2, 1], [0]]


def test_no_limit_and_no_room():
    assert assigned(parameters(1, 2, 3), 1e9, 1e9) == [[2, 1, 0]]
    assert assigned(parameters(1, 0, 3), 0, 0) == [[2], [1], [0]]


def test_each_dtype_has_buckets_of_its_own():
    narrow, wide = parameters(1, 1, 1), parameters(1, 1, dtype=torch.float64)
    mixed = [narrow[0], wide[0], narrow[1], wide[1], narrow[2]]
    assert assigned(mixed, 8, 8) == [[3], [4, 2], [1], [0]]
    assert assigned(mixed, 100, 100) == [[3, 1], [4, 2, 0]]


@settings(deadline=None)
@given(st.lists(st.integers(0, 30), min_size=1), st.integers(0, 100), st.integers(0, 100))
def test_every_parameter_is_in_one_bucket_in_reverse(sizes, bucket, first):
    given = parameters(*sizes)
    buckets = assigned(given, bucket, first)
    assert [place for b in buckets for place in b] == list(reversed(range(len(sizes))))
    bytes_of = [[4 * sizes[place] for place in b] for b in buckets]
    for limit, held in zip([first, *[bucket] * len(buckets)], bytes_of, strict=False):
        assert sum(held[:-1]) < limit or len(held) == 1
        assert sum(held) >= limit or held is bytes_of[-1]


# -- the weights of one process --------------------------------------------------------------------------------------


def close(ours, theirs, tolerance=1e-9):
    return all(torch.allclose(a, b, rtol=0, atol=tolerance) for a, b in zip(ours, theirs, strict=True))


CASES = [
    ("one bucket each", {"bucket_mib": 0, "first_bucket_mib": 0}),
    ("small buckets", SMALL),
    ("one bucket", {}),
    ("no overlap", {**SMALL, "overlap": False}),
    ("accumulation", {**SMALL, "accumulate": 2}),
    ("accumulation, no overlap", {**SMALL, "accumulate": 2, "overlap": False}),
    ("zeros for none", {**SMALL, "set_to_none": False}),
]


def every_case(data, all_reduce):
    done = {name: trained(data, Reducer, all_reduce, **options) for name, options in CASES}
    done["plain"] = trained(data, plain, all_reduce)
    return done


@pytest.mark.parametrize(
    ("sizes", "backend"),
    [([2, 2, 2, 2], "gloo"), ([3, 0, 1], "shared_memory"), ([1, 4], "gloo"), ([5], "gloo")],
    ids=str,
)
def test_twenty_steps_are_those_of_one_process(cluster_of, sizes, backend):
    """Tied weights, momentum and weight decay, a branch that not every rank takes and one that nobody does."""
    data = batches(sizes)
    run = cluster_of(len(sizes), backend).run(every_case, data, ring_all_reduce)
    expected = {False: alone(data), True: alone(data, set_to_none=False)}
    for done in run.results:
        for name, weights in done.items():
            assert close(weights, expected[name == "zeros for none"]), name


@pytest.mark.parametrize("all_reduce", [dist.all_reduce, root_all_reduce])
def test_any_all_reduce_will_do(cluster_of, all_reduce):
    data = batches([3, 0, 1])
    run = cluster_of(3).run(trained, data, Reducer, all_reduce, **SMALL)
    expected = alone(data)
    assert all(close(weights, expected) for weights in run.results)


def under_ddp(module, all_reduce):
    """Stock DistributedDataParallel with a hook, in the shape of a Reducer."""
    parallel = nn.parallel.DistributedDataParallel(module, bucket_cap_mb=300 / MIB, find_unused_parameters=True)
    hook = all_reduce_hook(all_reduce)
    parallel.register_comm_hook(None, hook)

    @contextlib.contextmanager
    def step(share):
        hook.share = share
        yield

    return SimpleNamespace(step=step, module=parallel)


@pytest.mark.parametrize("backend", BACKENDS)
def test_any_all_reduce_under_stock_ddp(cluster_of, backend):
    """With unequal shares, a parameter that not every rank uses, and one that nobody does."""
    data = batches([3, 1, 1])
    run = cluster_of(3, backend).run(trained, data, under_ddp, ring_all_reduce)
    expected = alone(data)
    assert all(close(weights, expected) for weights in run.results)
    assert run.regions("all-reduce") and run.messages()


def test_bfloat16(cluster_of):
    """In 16 bits every sum is rounded to three digits: the weights after twenty steps agree to a hundredth."""
    data = batches([2, 2, 2, 2], dtype=torch.bfloat16)
    run = cluster_of(4).run(trained, data, Reducer, ring_all_reduce, dtype=torch.bfloat16, **SMALL)
    expected = alone(data, dtype=torch.bfloat16)
    assert all(close(weights, expected, 0.05) for weights in run.results)
    assert all(torch.equal(a, b) for a, b in zip(run.results[0], run.results[3], strict=True))


def test_the_samples_of_all_ranks_decide_what_was_used(cluster_of):
    """A parameter used on one rank has a gradient on all; one used on none has none, also where zeros were before."""

    def function():
        first, second = nn.Linear(2, 1), nn.Linear(2, 1)
        model = nn.ModuleList([first, second])
        reducer = Reducer(model, ring_all_reduce)
        seen = []
        for users in ([0], [0, 1, 2], []):
            model.zero_grad()
            with reducer.step():
                loss = first(torch.ones(2)).sum()
                if dist.get_rank() in users:
                    loss = loss + second(torch.ones(2)).sum()
                loss.backward()
            seen.append([None if p.grad is None else float(p.grad.sum()) for p in (first.bias, second.bias)])
        return seen

    for seen in cluster_of(3).run(function).results:
        assert seen == [[1, pytest.approx(1 / 3)], [1, 1], [1, None]]


# -- what travels, when ----------------------------------------------------------------------------------------------


def test_the_bytes_are_the_formulas(cluster_of):
    def function():
        model = nn.Sequential(*[nn.Linear(9, 9) for _ in range(4)])
        reducer = Reducer(model, ring_all_reduce, **SMALL)
        for _ in range(2):
            with reducer.step():
                model(torch.ones(2, 9)).sum().backward()
        return [bucket.buffer.numel() for bucket in reducer.buckets]

    run = cluster_of(4).run(function)
    sizes = run.results[0]
    assert sum(sizes) == 4 * 90 + 8 and len(sizes) == 4
    for rank in range(4):
        sent = 0
        for size in sizes:
            chunk = [4 * len(c) for c in torch.empty(size).tensor_split(4)]
            sent += 2 * 4 * size - chunk[(rank + 1) % 4] - chunk[(rank + 2) % 4]
        assert run.bytes_sent(rank) == 2 * sent


class Slowly(torch.autograd.Function):
    """The identity; its backward takes its time."""

    @staticmethod
    def forward(ctx, x, seconds):
        ctx.seconds = seconds
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.seconds)
        return gradient, None


def overlapped(overlap, order):
    """Three layers, of which each rank uses the last two in an order of its own."""
    torch.manual_seed(0)
    layers = nn.ModuleList(nn.Linear(9, 9) for _ in range(3))
    reducer = Reducer(layers, ring_all_reduce, bucket_mib=0, first_bucket_mib=0, overlap=overlap)
    x = layers[0](torch.ones(2, 9))
    for number in order[dist.get_rank()]:
        x = layers[number](Slowly.apply(x, 0.05))
    with reducer.step(), region("backward"):
        x.sum().backward()
    return [p.grad for p in layers.parameters()]


@pytest.mark.parametrize("overlap", [True, False])
def test_the_order_is_the_same_on_all_ranks_whatever_comes_first(cluster_of, overlap):
    run = cluster_of(3).run(overlapped, overlap, [(1, 2), (2, 1), (1, 2)])
    assert all(close(grads, run.results[0]) for grads in run.results)
    for rank in range(3):
        buckets = run.regions("all-reduce", rank)
        assert [e.labels["bucket"] for e in buckets] == list(range(6))
        assert [e.labels["bucket"] for e in run.messages(rank)] == [n for n in range(6) for _ in range(4)]
        (backward,) = run.regions("backward", rank)
        assert (buckets[0].posted < backward.ended) is overlap


def test_regions_belong_to_their_thread(cluster_of):
    """What the communication thread sends is in its own region, and in none of those that the main thread is in."""

    def function():
        background, x = Background(), torch.ones(3)
        with region("outer", where="main"), region("control"):
            background.submit(lambda: labelled(x)).wait()
            dist.all_reduce(x)
        return x

    def labelled(x):
        with region("inner", by="thread"):
            ring_all_reduce(x)

    run = cluster_of(2).run(function)
    assert {tuple(e.labels) for e in run.messages()} == {("by",)} and not any(e.control for e in run.messages())
    assert {(tuple(e.labels), e.control) for e in run.events if e.kind == "collective"} == {(("where",), True)}
    assert {(e.op, tuple(e.labels)) for e in run.regions()} >= {("inner", ("by",)), ("wait", ("where",))}


# -- nothing is left -------------------------------------------------------------------------------------------------


def communication_threads():
    return [t for t in threading.enumerate() if t.name == "communication"]


def hooks_of(module):
    return sum(len(p._post_accumulate_grad_hooks or ()) for p in module.parameters())


def many_steps():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    reducer = Reducer(model, dist.all_reduce, **SMALL)
    objects = []
    for number in range(1000):
        with reducer.step():
            model(torch.ones(1, 4)).sum().backward()
        model.zero_grad()
        if number in (100, 999):
            gc.collect()
            objects.append(len(gc.get_objects()))
    before, seen = hooks_of(model), weakref.ref(reducer)
    del reducer
    end = time.monotonic() + 10
    while communication_threads() and time.monotonic() < end:
        time.sleep(0.001)
    return objects, before, seen() is None, hooks_of(model), len(communication_threads())


def test_a_thousand_steps_leak_nothing(cluster_of):
    for (early, late), before, gone, hooks, threads in cluster_of(2).run(many_steps).results:
        assert late - early < 100 and before == 4
        assert gone and hooks == 0 and threads == 0


def test_closed_it_has_no_hooks_and_no_thread(cluster_of):
    def function():
        model = nn.Linear(2, 2)
        reducer = Reducer(model, ring_all_reduce)
        reducer.close()
        assert hooks_of(model) == 0 and not communication_threads()
        with reducer.step():
            pass

    with pytest.raises(RankError, match="this Reducer is closed, by close\\(\\) or by a step that failed"):
        cluster_of(2).run(function)
