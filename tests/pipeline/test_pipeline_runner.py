"""The runner on real ranks: whatever the schedule, the gradients are those of one process with the whole batch."""

from contextlib import ExitStack

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss

from dtcourse import Cluster
from dtcourse.pipeline.actions import Schedule
from dtcourse.pipeline.runner import Pipeline
from dtcourse.pipeline.schedules import gpipe, interleaved, one_f_one_b
from dtcourse.pipeline.zero_bubble import zero_bubble_h1, zero_bubble_h2

WORLDS = (1, 2, 3, 4)
SYNCHRONOUS = (gpipe, one_f_one_b, zero_bubble_h1, zero_bubble_h2)


@pytest.fixture(scope="module", params=["auto", "gloo"])
def clusters(request):
    """`auto` is our shared memory."""
    with ExitStack() as stack:
        yield {world: stack.enter_context(Cluster(world, backend=request.param)) for world in WORLDS}


def layers(stages: int) -> list[nn.Module]:
    """A module for each stage, the same on all ranks."""
    torch.manual_seed(stages)
    return [nn.Sequential(nn.Linear(4, 4), nn.Tanh()).double() for _ in range(stages)]


def own(stages: int) -> dict[int, nn.Module]:
    """The modules of this rank."""
    return {s: layers(stages)[s] for s in range(dist.get_rank(), stages, dist.get_world_size())}


def batch(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(size)
    return tuple(torch.randn(size, 4, dtype=torch.double, generator=generator) for _ in "xy")


def squares(outputs, targets):
    return (outputs - targets).square().sum()


def trained(cases: list[tuple[Schedule, str, int]]) -> list:
    """For each case the loss and {stage: gradients} of this rank."""
    results = []
    for schedule, reduction, size in cases:
        modules = own(schedule.stages)
        pipeline = Pipeline(schedule, modules, mse_loss if reduction == "mean" else squares, reduction=reduction)
        loss = pipeline.step(*batch(size))
        results.append((loss, {s: gradients(module) for s, module in modules.items()}))
    return results


def gradients(module: nn.Module) -> list[torch.Tensor]:
    return [parameter.grad for parameter in module.parameters()]


def alone(stages: int, reduction: str, size: int) -> tuple[torch.Tensor, dict[int, list[torch.Tensor]]]:
    """The same from one process with the whole batch."""
    modules = layers(stages)
    x, y = batch(size)
    loss = (mse_loss if reduction == "mean" else squares)(nn.Sequential(*modules)(x), y)
    loss.backward()
    return loss.detach(), {s: gradients(module) for s, module in enumerate(modules)}


def cases(world: int) -> list[tuple[Schedule, str, int]]:
    schedules = [make(world, microbatches) for make in SYNCHRONOUS for microbatches in range(1, 10)]
    schedules += [interleaved(world, world * groups, chunks) for groups in (1, 2, 3) for chunks in (2, 3)]
    return [
        (schedule, reduction, schedule.microbatches * 2 + more)
        for schedule in schedules
        for reduction, more in (("mean", 1), ("sum", 0))  # the mean with a tail
    ]


@pytest.mark.parametrize("world", WORLDS)
def test_every_synchronous_schedule_gives_the_gradients_of_the_whole_batch(clusters, world):
    asked = cases(world)
    results = clusters[world].run(trained, asked).results
    for number, (schedule, reduction, size) in enumerate(asked):
        loss, expected = alone(schedule.stages, reduction, size)
        losses, parts = zip(*(result[number] for result in results), strict=True)
        assert losses[:-1] == (None,) * (world - 1)
        torch.testing.assert_close(losses[-1], loss, rtol=0, atol=1e-10)
        got = {stage: part for one in parts for stage, part in one.items()}
        for stage in range(schedule.stages):
            torch.testing.assert_close(got[stage], expected[stage], rtol=0, atol=1e-10)
