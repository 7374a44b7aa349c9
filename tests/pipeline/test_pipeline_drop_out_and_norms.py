"""What drop-out and batch norm are in a pipeline, on real ranks: the rules of `recompute`, with it and without."""

from collections.abc import Iterable

import pytest
import torch
import torch.distributed as dist
from piped_models import WIDTH, batch, gradients, mine, same, sum_of_squares
from torch import nn

from dtcourse.pipeline.actions import Kind, Schedule
from dtcourse.pipeline.order import in_order
from dtcourse.pipeline.runner import Pipeline
from dtcourse.pipeline.schedules import gpipe, interleaved, one_f_one_b
from dtcourse.pipeline.zero_bubble import zero_bubble_h1, zero_bubble_h2

WORLD, MICROBATCHES, STEPS = 3, 6, 2
SIZE = 2 * MICROBATCHES + 4  # some micro-batches are larger than others
ONE_STAGE_A_RANK = [make(WORLD, MICROBATCHES) for make in (gpipe, one_f_one_b, zero_bubble_h1, zero_bubble_h2)]
SCHEDULES = [*ONE_STAGE_A_RANK, interleaved(WORLD, MICROBATCHES, 2)]

Left = list[list[torch.Tensor]]  # of each stage, its gradients and running statistics


def stages(count: int) -> list[nn.Module]:
    torch.manual_seed(count)
    layers = [(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5), nn.BatchNorm1d(WIDTH), nn.Dropout(0.2)) for _ in range(count)]
    return [nn.Sequential(*stage).double() for stage in layers]


def left(module: nn.Module) -> list[torch.Tensor]:
    return [*gradients(module), *module.buffers()]


def train(recompute: bool) -> list[dict[int, list[torch.Tensor]]]:
    """On a rank: some steps under each schedule."""
    results = []
    for schedule in SCHEDULES:
        modules = mine(stages(schedule.stages))
        pipeline = Pipeline(schedule, modules, sum_of_squares, reduction="sum", recompute=recompute)
        torch.manual_seed(dist.get_rank())
        for _ in range(STEPS):
            pipeline.step(*batch(SIZE))
        results.append({number: left(module) for number, module in modules.items()})
    return results


def one_process(schedule: Schedule, forwards: Iterable[tuple[int, int, int]]) -> Left:
    """The same from one process that does these forwards, (rank, micro-batch, stage), in this order."""
    modules, states, (x, y) = stages(schedule.stages), {}, batch(SIZE)
    for rank in range(WORLD):
        states[rank] = torch.Generator().manual_seed(rank).get_state()
    for _ in range(STEPS):
        activations = {(m, -1): part for m, part in enumerate(torch.tensor_split(x, schedule.microbatches))}
        for rank, microbatch, stage in forwards:
            torch.set_rng_state(states[rank])
            activations[microbatch, stage] = modules[stage](activations[microbatch, stage - 1])
            states[rank] = torch.get_rng_state()
        outputs = [activations[m, schedule.stages - 1] for m in range(schedule.microbatches)]
        sum_of_squares(torch.cat(outputs), y).backward()
    return [left(module) for module in modules]


@pytest.fixture(scope="module", params=[False, True], ids=["all kept", "recomputed"])
def trained(request, cluster) -> list[Left]:
    """Of each schedule, what it leaves on real ranks."""
    ranks = cluster(WORLD).run(train, request.param).results
    found = [
        {stage: tensors for part in parts for stage, tensors in part.items()} for parts in zip(*ranks, strict=True)
    ]
    return [[parts[stage] for stage in sorted(parts)] for parts in found]


def test_with_one_stage_a_rank_it_is_stage_by_stage_and_in_a_stage_microbatch_by_microbatch(trained):
    schedule = ONE_STAGE_A_RANK[0]
    forwards = [(stage, m, stage) for stage in range(WORLD) for m in range(MICROBATCHES)]
    expected = one_process(schedule, forwards)
    for got in trained[: len(ONE_STAGE_A_RANK)]:
        assert all(map(same, got, expected))


def test_interleaved_the_stages_of_a_rank_draw_in_turns(trained):
    schedule = SCHEDULES[-1]
    forwards = [(rank, a.microbatch, a.stage) for rank, a in in_order(schedule) if a.kind == Kind.FORWARD]
    assert all(map(same, trained[-1], one_process(schedule, forwards)))
    in_a_row = sorted(forwards, key=lambda forward: forward[2])
    assert not any(map(same, trained[-1], one_process(schedule, in_a_row)))


def test_it_is_not_the_whole_batch_at_once(trained):
    whole = one_process(gpipe(WORLD, 1), [(stage, 0, stage) for stage in range(WORLD)])
    assert not any(map(same, trained[0], whole))


def test_running_statistics_are_updated_once_for_each_microbatch(trained):
    for schedule, parts in zip(SCHEDULES, trained, strict=True):
        assert [int(tensors[-1]) for tensors in parts] == [STEPS * MICROBATCHES] * schedule.stages
