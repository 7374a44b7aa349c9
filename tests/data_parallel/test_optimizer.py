"""DistributedOptimizer: whatever gets ready where and when, the ranks agree; wrong use and stalled ranks are named."""

from __future__ import annotations

import copy
import gc
import os
import re
import threading
import time

import pytest
import torch
import torch.distributed as dist
from torch import nn
from trained_models import Model, alone, batches, difference, loss_of, sgd

import dtcourse.data_parallel.negotiation as negotiation
from dtcourse import Deadlock, RankDied, RankError
from dtcourse.collectives.ring import ring_all_reduce
from dtcourse.collectives.root import root_all_reduce
from dtcourse.data_parallel.negotiation import Negotiation, State, shortened
from dtcourse.data_parallel.optimizer import DistributedOptimizer
from dtcourse.data_parallel.shares import joined, share_of

BACKENDS = ["shared_memory", "gloo"]


def distributed(model, **options):
    return DistributedOptimizer(sgd(model.parameters()), model.named_parameters(), **options)


# -- equal to one process ----------------------------------------------------------------------------------------------


def trained(steps, passes=1, **options):
    """Each rank's batch cut into `passes`; the shares are of all samples."""
    model = Model()
    optimizer = distributed(model, backward_passes_per_step=passes, **options)
    own = [step_batches[dist.get_rank()] for step_batches in steps]
    for batch in own:
        optimizer.zero_grad()
        optimizer.share = share_of(len(batch))
        for part in batch.split(-(-len(batch) // passes)) if len(batch) else ():
            (loss_of(model, part) * (len(part) / len(batch))).backward()
        optimizer.step()
    return model.state_dict()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "options", [{}, {"fusion_mib": 1e-4, "cycle_ms": 0}, {"all_reduce": root_all_reduce}], ids=["plain", "tiny", "root"]
)
def test_ranks_without_samples_and_parameters_without_gradients(cluster_of, backend, options):
    steps = batches(3, everybody=False)
    for weights in cluster_of(3, backend).run(trained, steps, **options).results:
        assert difference(weights, alone(steps)) < 1e-12


def test_backward_passes_per_step(cluster_of):
    """Some batches have fewer parts than passes: what is ready then is known in step()."""
    steps = batches(3)
    for weights in cluster_of(3).run(trained, steps, passes=2).results:
        assert difference(weights, alone(steps)) < 1e-12


def test_uneven_numbers_of_batches(cluster_of):
    steps = batches(3)
    for step, step_batches in enumerate(steps):
        step_batches[2] = step_batches[2][: 0 if step > 12 else None]

    def job():
        model = Model()
        optimizer = distributed(model)
        for batch, share in joined(b for s in steps if len(b := s[dist.get_rank()])):
            optimizer.zero_grad()
            optimizer.share = share
            if batch is not None:
                loss_of(model, batch).backward()
            optimizer.step()
        return model.state_dict()

    for weights in cluster_of(3).run(job).results:
        assert difference(weights, alone(steps)) < 1e-12


class Branches(nn.Module):
    """A sum of branches, whose gradients get ready in the order of `order`, the last one first."""

    def __init__(self, order):
        super().__init__()
        torch.manual_seed(1)
        self.branches = nn.ModuleList(nn.Linear(8, 8).double() for _ in order)
        self.order = order

    def forward(self, x):
        return sum(self.branches[i](x) for i in self.order)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_ready_in_another_order_on_each_rank(cluster_of, backend):
    """The branches of rank r begin with number r; and each takes a while, so that not all are ready at once."""

    def job():
        rank, ready = dist.get_rank(), []
        model = Branches([(rank + i) % 4 for i in range(4)])
        optimizer = distributed(model)
        for number, branch in enumerate(model.branches):
            branch.weight.register_hook(lambda gradient, number=number: (ready.append(number), time.sleep(0.01))[0])
        x = torch.arange(24.0, dtype=torch.double).view(3, 8) / 10
        model(x[rank : rank + 1]).square().mean().backward()
        optimizer.synchronize()
        return ready, [p.grad for p in model.parameters()]

    run = cluster_of(3, backend).run(job)
    assert len({tuple(ready) for ready, _ in run.results}) == 3
    model = Branches(range(4))
    model(torch.arange(24.0, dtype=torch.double).view(3, 8) / 10).square().mean().backward()
    for _, gradients in run.results:
        assert all(torch.allclose(a, p.grad, atol=1e-14) for a, p in zip(gradients, model.parameters(), strict=True))


# -- what travels, and when --------------------------------------------------------------------------------------------


def buffers(run, rank=0):
    return [event.labels["bucket"] for event in run.events if event.op == "all-reduce" and event.rank == rank]


def once(fusion_mib=128, cycle_ms=0, pause=0.0):
    model = Branches(range(4))
    optimizer = distributed(model, fusion_mib=fusion_mib, cycle_ms=cycle_ms)
    for branch in model.branches:
        branch.weight.register_hook(lambda gradient: time.sleep(pause))
    model(torch.ones(1, 8, dtype=torch.double)).sum().backward()
    optimizer.step()


def test_tensors_that_are_ready_in_one_cycle_travel_together(cluster_of):
    together = cluster_of(3).run(once, cycle_ms=200)
    assert buffers(together) == [0]
    limited = cluster_of(3).run(once, fusion_mib=600 / 2**20, cycle_ms=200)  # of 512 and 64 bytes
    assert buffers(limited) == [0, 1, 2, 3]
    for run in (together, limited):
        assert sum(run.bytes_sent(rank) for rank in range(3)) == 4 * 4 * (512 + 64)  # 2 (N-1) S


def test_gradients_travel_while_others_are_computed(cluster_of):
    """Four branches, each a while after the other: all but the last have gone when the backward is over."""

    def job():
        once(pause=0.1)

    run = cluster_of(2).run(job)
    waits = next(event for event in run.events if event.op == "wait" and event.rank == 0)
    begun = [event.posted < waits.posted for event in run.events if event.op == "all-reduce" and event.rank == 0]
    assert len(begun) >= 4 and sum(begun) >= 3


def test_the_table_of_the_negotiation(cluster_of):
    lines = [line for line in negotiation.__doc__.splitlines() if line.startswith(" " * 20) or "rank" in line[:8]]
    names, *rows = (line.split() for line in lines[:3])
    states = [[State[word] for word in row[2:]] for row in rows]

    def job():
        one = Negotiation(names, torch.device("cpu"), dist.group.WORLD)
        return one.round(states[dist.get_rank()])

    run = cluster_of(2).run(job)
    assert run.results == [({0, 2}, {0, 2})] * 2 and names == ["weight", "bias", "embedding"]
    assert run.bytes_sent(0) == 0


def test_names_are_shortened():
    assert shortened(["a", "b", "c"]) == "a, b, c" and shortened(list("abcde")) == "a, b, c and 2 more"


# -- at home in Horovod ------------------------------------------------------------------------------------------------


def test_clipping_between_synchronize_and_step(cluster_of):
    def job():
        model = Branches([0])
        optimizer = distributed(model)
        model(torch.full((1, 8), dist.get_rank() + 1.0, dtype=torch.double)).sum().backward()
        optimizer.synchronize()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        with optimizer.skip_synchronize():
            optimizer.step()
        return norm, list(model.parameters())

    (norm, first), (_, second), (_, third) = cluster_of(3).run(job).results
    model = Branches([0])
    model(torch.full((1, 8), 2.0, dtype=torch.double)).sum().backward()
    assert torch.allclose(norm, nn.utils.clip_grad_norm_(model.parameters(), 0.1))
    sgd(model.parameters()).step()
    for a, b, c, expected in zip(first, second, third, model.parameters(), strict=True):
        assert torch.equal(a, b) and torch.equal(b, c) and torch.allclose(a, expected)


def test_schedulers_and_state_dicts(cluster_of):
    def step(model, optimizer):
        model(torch.ones(1, 8, dtype=torch.double)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    def job(make):
        model = Branches([0])
        optimizer = make(model)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        step(model, optimizer)
        scheduler.step()
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        step(model, optimizer)
        scheduler.step()
        step(model, optimizer)
        return list(model.parameters()), optimizer.param_groups[0]["lr"]

    parameters, rate = job(lambda model: sgd(model.parameters()))
    for ours, our_rate in cluster_of(2).run(job, distributed).results:
        assert all(torch.allclose(a, b) for a, b in zip(ours, parameters, strict=True)) and our_rate == rate == 0.025


def test_nothing_is_left_when_it_is_dropped(cluster_of):
    def job():
        model, threads = Branches([0]), []
        for _ in range(2):
            optimizer = distributed(model)
            model(torch.ones(1, 8, dtype=torch.double)).sum().backward()
            optimizer.step()
            del optimizer
            gc.collect()
            end = time.monotonic() + 10
            while (alive := [t for t in threading.enumerate() if t.name == "communication"]) and time.monotonic() < end:
                time.sleep(0.005)
            threads.append(len(alive))
        hooks = [len(p._post_accumulate_grad_hooks or ()) for p in model.parameters()]
        return threads, hooks

    assert cluster_of(2).run(job).results == [([0, 0], [0, 0])] * 2


# -- wrong use ---------------------------------------------------------------------------------------------------------


def backward(model):
    model(torch.ones(1, 8, dtype=torch.double)).sum().backward()


def twice(model, optimizer):
    backward(model)
    backward(model)


def no_share(model, optimizer):
    optimizer.share = float("nan")


def no_passes(model, optimizer):
    distributed(model, backward_passes_per_step=0)


def late_share(model, optimizer):
    backward(model)
    optimizer.share = 0.5


def zero_grad_between(model, optimizer):
    backward(model)
    optimizer.zero_grad()


def synchronized_twice(model, optimizer):
    backward(model)
    optimizer.synchronize()
    optimizer.step()


def not_synchronized(model, optimizer):
    backward(model)
    with optimizer.skip_synchronize():
        optimizer.step()


def second_derivative(model, optimizer):
    model(torch.ones(1, 8, dtype=torch.double)).square().sum().backward(create_graph=True)


def nameless(model, optimizer):
    DistributedOptimizer(sgd(model.parameters()), list(model.named_parameters())[1:])


def names_twice(model, optimizer):
    DistributedOptimizer(sgd(model.parameters()), [("x", p) for p in model.parameters()])


def without_names(model, optimizer):
    DistributedOptimizer(sgd(model.parameters()), model.parameters())


def other_settings(model, optimizer):
    passes = 1 + dist.get_rank()
    DistributedOptimizer(sgd(model.parameters()), model.named_parameters(), backward_passes_per_step=passes)


def sparse(model, optimizer):
    table = nn.Embedding(4, 2, sparse=True)
    optimizer = distributed(table)
    table(torch.tensor([1])).sum().backward()
    optimizer.step()


REFUSED = {
    r"rank \d: backward 2 of branches.0.(weight|bias) since .* backward_passes_per_step is 1": twice,
    r"backward_passes_per_step=0: at least 0, 0 and 1": no_passes,
    r"set optimizer.share before the backward": late_share,
    r"share=nan: a rank's share of the samples is between 0 and 1": no_share,
    r"zero_grad\(\) after backward\(\) and before step\(\)": zero_grad_between,
    r"averaged already: after synchronize\(\), call step\(\) inside": synchronized_twice,
    r"step\(\) needs synchronize\(\) before": not_synchronized,
    r"step\(closure\)": lambda model, optimizer: optimizer.step(lambda: 0.0),
    r"gradient of branches.0.\w+ has a graph of its own": second_derivative,
    r"gradient of weight is sparse.* sparse=False": sparse,
    r"names no parameter of shape \(8, 8\) that the optimizer updates \(1 without a name\)": nameless,
    r"two parameters of one name: x": names_twice,
    r"parameters without names: pass model.named_parameters\(\)": without_names,
    r"backward_passes_per_step is 2 on rank 1, backward_passes_per_step is 1 on rank 0": other_settings,
    r"holds a communication thread.* state_dict\(\)": lambda model, optimizer: copy.deepcopy(optimizer),
    r"has all of its parameters from the beginning": lambda model, optimizer: optimizer.add_param_group({"params": []}),
}


def refusals():
    found = []
    for wrong in REFUSED.values():
        model = Branches([0])
        try:
            wrong(model, distributed(model))
            found.append("nothing")
        except Exception as problem:
            found.append(str(problem))
    return found


def test_wrong_use_is_refused_on_every_rank(cluster_of):
    for said in cluster_of(2).run(refusals).results:
        for says, text in zip(REFUSED, said, strict=True):
            assert re.search(says, text, re.S), text


def frozen():
    module = nn.Linear(2, 2)
    module.bias.requires_grad_(False)
    return module


DIFFERENT = {
    r"weight is float32 \(2, 3\) on rank 1, weight is float32 \(2, 2\) on rank 0": lambda: nn.Linear(3, 2),
    r"bias is float64 \(2,\) on rank 1, bias is float32": lambda: nn.Linear(2, 2, dtype=torch.double),
    r"weight is float32 \(2, 2\) on rank 1, bias is float32": lambda: nn.Linear(2, 2, bias=False),
    r"bias is float32 \(2,\), frozen on rank 1, bias is float32 \(2,\) on rank 0": frozen,
    r"fusion_mib is 1 on rank 1, fusion_mib is 128 on rank 0": lambda: nn.Linear(2, 2),
}


def test_other_parameters_on_one_rank(cluster_of):
    """Every rank says the same, whoever differs."""

    def job():
        said = []
        for make in DIFFERENT.values():
            odd = dist.get_rank() == 1
            try:
                distributed(make() if odd else nn.Linear(2, 2), fusion_mib=1 if odd else 128)
            except ValueError as problem:
                said.append(str(problem))
        return said

    first, *others = cluster_of(3).run(job).results
    assert others == [first] * 2
    for says, text in zip(DIFFERENT, first, strict=True):
        assert re.match(f"the parameters of rank 1 are not those of rank 0: {says}", text), text


# -- what could go wrong silently --------------------------------------------------------------------------------------


def in_place_or_not(kind):
    model = Branches([0])
    optimizer = distributed(model, all_reduce=kind)
    backward(model)
    optimizer.step()


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (lambda tensor, group=None: tensor.clone(), "Tensor"),
        (lambda tensor, group=None: dist.all_reduce(tensor, group=group, async_op=True), "RecordedWork"),
    ],
)
def test_an_all_reduce_that_does_not_sum_in_place(cluster_of, kind, what):
    with pytest.raises(RankError, match=f"the all-reduce returned a {what}: it has to sum in place"):
        cluster_of(2).run(in_place_or_not, kind)


def test_the_newest_of_two_on_one_model(cluster_of):
    """Otherwise both would multiply the gradient by the share."""

    def job():
        model = Branches([0])
        older, newer = distributed(model), distributed(model)
        gradients = []
        for optimizer in (newer, older):
            model.zero_grad()
            backward(model)
            optimizer.synchronize()
            gradients.append(model.branches[0].bias.grad)
        return gradients

    for gradients in cluster_of(2).run(job).results:
        assert all(torch.equal(gradient, torch.ones(8, dtype=torch.double)) for gradient in gradients)


def test_what_the_main_thread_sends_meanwhile_does_not_cross(cluster_of):
    """As in a batch norm that is synchronized: an all-reduce in the backward of each branch."""

    def job():
        model, sums = Branches(range(4)), []
        optimizer = distributed(model, cycle_ms=0)

        def talk(gradient):
            x = torch.full((37,), dist.get_rank() + 1.0)
            ring_all_reduce(x)
            sums.append(x)

        for branch in model.branches:
            branch.weight.register_hook(talk)
        backward(model)
        optimizer.synchronize()
        return sums, [branch.bias.grad for branch in model.branches]

    for sums, gradients in cluster_of(3).run(job).results:
        assert all(torch.equal(x, torch.full((37,), 6.0)) for x in sums) and len(sums) == 4
        assert all(torch.allclose(gradient, torch.ones(8, dtype=torch.double)) for gradient in gradients)


def test_layers_that_are_unfrozen_later(cluster_of):
    def job():
        model = Branches(range(2))
        model.branches[0].requires_grad_(False)
        optimizer = distributed(model)
        backward(model)
        optimizer.step()
        optimizer.zero_grad()
        model.branches[0].requires_grad_(True)
        model(torch.full((1, 8), dist.get_rank() + 1.0, dtype=torch.double)).sum().backward()
        optimizer.synchronize()
        return [branch.weight.grad for branch in model.branches]

    for gradients in cluster_of(3).run(job).results:
        assert all(torch.allclose(gradient, torch.full((8, 8), 2.0, dtype=torch.double)) for gradient in gradients)


# -- a rank that does not come -----------------------------------------------------------------------------------------


ALL = "branches.0.bias, branches.0.weight, branches.1.bias and 1 more"


def returns(model, optimizer):
    pass


def never_steps(model, optimizer):
    """The gradients of branch 1 are ready and those of branch 0 never will be."""
    model.order = [1]
    backward(model)
    dist.barrier()


def does_something_else(model, optimizer):
    dist.all_reduce(torch.ones(1))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("stalls", "where", "names"),
    [
        (returns, "rank 1 has already returned", "branches.0.bias, branches.0.weight, branches.1.bias and 1 more"),
        (never_steps, "rank 1 waits in barrier", "branches.0.bias, branches.0.weight"),
        (
            does_something_else,
            "rank 1 waits in all_reduce",
            "branches.0.bias, branches.0.weight, branches.1.bias and 1 more",
        ),
    ],
)
def test_a_stalled_rank_is_named_and_so_are_the_tensors(cluster_of, backend, stalls, where, names):
    def job():
        model = Branches(range(2))
        optimizer = distributed(model, cycle_ms=200)  # a rank tells all of its gradients at once
        for step in range(3):
            if dist.get_rank() == 1 and step == 1:
                stalls(model, optimizer)
                return
            backward(model)
            optimizer.step()
            optimizer.zero_grad()

    with pytest.raises(Deadlock) as caught:
        cluster_of(3, backend).run(job)
    said = str(caught.value)
    assert where in said
    late = "for (rank 1|ranks 1 and 2)"  # rank 2 may be on its way
    assert re.search(rf"rank 0 waits in all_gather .*, {late} \(waiting {names}\)\n +at .*optimizer.step\(\)", said), (
        said
    )


def breaks_at(rank, number, what):
    calls = []

    def all_reduce(tensor, group=None):
        calls.append(None)
        if dist.get_rank() == rank and len(calls) == number:
            what()
        ring_all_reduce(tensor, group)

    return all_reduce


def raises():
    raise ArithmeticError("nothing good came of it")


def job_that_breaks(what):
    model = Branches(range(2))
    optimizer = distributed(model, all_reduce=breaks_at(1, 2, what), fusion_mib=1e-6)
    backward(model)
    optimizer.step()


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_all_reduce_that_raises_or_dies(cluster_of, backend):
    with pytest.raises(RankError, match=r"rank 1 raised ArithmeticError: nothing good came of it\n  at .*raise Arith"):
        cluster_of(3, backend).run(job_that_breaks, raises)
    with pytest.raises(RankDied) as caught:
        cluster_of(3, backend).run(job_that_breaks, lambda: os._exit(3))
    assert caught.value.rank == 1
