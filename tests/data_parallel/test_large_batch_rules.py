"""Linear scaling, gradual warm-up, loss by samples."""

from __future__ import annotations

import math
import re

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as some
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import LinearLR, MultiStepLR, SequentialLR

from dtcourse import per_rank
from dtcourse.collectives.ring import ring_all_reduce
from dtcourse.data_parallel import large_batch
from dtcourse.data_parallel.large_batch import GradualWarmup, loss_by_samples, scaled_rate
from dtcourse.data_parallel.replicas import average_gradients


def sgd(*rates):
    return torch.optim.SGD([{"params": [nn.Parameter(torch.ones(2))], "lr": rate} for rate in rates])


def rates_of(scheduler, iterations):
    """The rates of the first parameter group, iteration after iteration, as a training sees them."""
    seen = []
    for _ in range(iterations):
        seen.append(scheduler.optimizer.param_groups[0]["lr"])
        scheduler.optimizer.step()
        scheduler.step()
    return seen


def test_the_paper_s_rate():
    assert scaled_rate(0.1, 8192, 256) == pytest.approx(3.2)


@pytest.mark.parametrize(("batch", "reference"), [(0, 32), (32, 0), (-4, 32)])
def test_a_batch_without_samples(batch, reference):
    with pytest.raises(ValueError, match="one sample or more"):
        scaled_rate(0.1, batch, reference)


def test_the_table():
    table = re.search(r"rate  +((?:[\d.]+ +)+[\d.]+)\n", large_batch.__doc__).group(1)
    wanted = [float(number) for number in table.split()]
    assert rates_of(GradualWarmup(sgd(0.8), k=8, iterations=4), len(wanted)) == pytest.approx(wanted)


@given(some.floats(1e-3, 10), some.floats(1, 100), some.integers(1, 30))
def test_it_is_torch_s_linear_schedule(rate, k, iterations):
    ours, torchs = GradualWarmup(sgd(rate), k, iterations), LinearLR(sgd(rate), 1 / k, total_iters=iterations)
    assert rates_of(ours, iterations + 3) == pytest.approx(rates_of(torchs, iterations + 3))


def test_each_group_has_its_own_rate():
    warmup = GradualWarmup(sgd(0.8, 0.2), k=2, iterations=2)
    assert warmup.get_last_lr() == pytest.approx([0.4, 0.1])
    rates_of(warmup, 2)
    assert warmup.get_last_lr() == pytest.approx([0.8, 0.2])


@pytest.mark.parametrize(("k", "iterations"), [(1, 5), (8, 0)])
def test_without_a_warm_up(k, iterations):
    assert rates_of(GradualWarmup(sgd(0.8), k, iterations), 3) == pytest.approx([0.8] * 3)


@pytest.mark.parametrize(("k", "iterations"), [(0.5, 5), (8, -1)])
def test_no_such_warm_up(k, iterations):
    with pytest.raises(ValueError, match=re.escape(f"{k=}, {iterations=}")):
        GradualWarmup(sgd(0.8), k, iterations)


def test_another_schedule_goes_on():
    optimizer = sgd(0.8)
    parts = [GradualWarmup(optimizer, k=4, iterations=3), MultiStepLR(optimizer, [2, 4])]
    rates = rates_of(SequentialLR(optimizer, parts, milestones=[3]), 8)
    assert rates == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8, 0.08, 0.08, 0.008])


def test_it_goes_on_where_it_was_saved():
    saved, fresh = GradualWarmup(sgd(0.8), 8, 4), GradualWarmup(sgd(0.8), 8, 4)
    rates_of(saved, 2)
    fresh.load_state_dict(saved.state_dict())
    fresh.optimizer.load_state_dict(saved.optimizer.state_dict())
    assert rates_of(fresh, 3) == pytest.approx([0.45, 0.625, 0.8])


def test_any_optimizer_and_momentum_needs_no_correction():
    """torch's SGD makes the steps of the other form with the velocity corrected, when the rate changes each time."""
    parameter = nn.Parameter(torch.tensor(3.0, dtype=torch.float64))
    optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
    warmup = GradualWarmup(optimizer, k=8, iterations=5)
    w, v, before = 3.0, 0.0, optimizer.param_groups[0]["lr"]
    for _ in range(10):
        rate = optimizer.param_groups[0]["lr"]
        v = 0.9 * (rate / before) * v + rate * math.cos(w)
        w, before = w - v, rate
        optimizer.zero_grad()
        parameter.sin().backward()
        optimizer.step()
        warmup.step()
    assert parameter.item() == pytest.approx(w)


def test_a_micro_batch_larger_than_the_step():
    with pytest.raises(ValueError, match="5 samples in all, and this micro-batch alone 6"):
        loss_by_samples(torch.ones(6), 5)


@pytest.mark.parametrize("shares", [[[2, 2], [2, 2], [2, 2]], [[5], [1, 2], []], [[3, 1], [], [4, 4]]])
def test_the_sum_of_all_parts_is_the_whole_batch(cluster_of, shares):
    """`shares`: for each rank the sizes of its micro-batches."""
    generator = torch.Generator().manual_seed(0)
    samples = sum(map(sum, shares))
    x = torch.randn(samples, 4, dtype=torch.float64, generator=generator)
    y = torch.randint(3, (samples,), generator=generator)
    sizes = [size for share in shares for size in share]
    pieces = iter(zip(x.split(sizes), y.split(sizes), strict=True))
    micro_batches = [[next(pieces) for _ in share] for share in shares]

    def gradient(mine):
        torch.manual_seed(0)
        model = nn.Linear(4, 3).double()
        for x, y in mine:
            loss_by_samples(cross_entropy(model(x), y, reduction="none"), samples).backward()
        if dist.is_initialized():
            average_gradients(model.parameters(), ring_all_reduce, share=1)
        return [parameter.grad for parameter in model.parameters()]

    wanted = gradient([(x, y)])
    for result in cluster_of(3).run(gradient, per_rank(micro_batches)).results:
        for seen, right in zip(result, wanted, strict=True):
            assert torch.allclose(seen, right, atol=1e-12)
