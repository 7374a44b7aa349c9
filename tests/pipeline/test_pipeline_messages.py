"""The messages of every schedule on real ranks: an exchange is one batch, waited for as a whole; right values come."""

from contextlib import ExitStack

import pytest
import torch
import torch.distributed as dist
from every_schedule import ONE_STAGE_A_RANK

from dtcourse import Cluster
from dtcourse.pipeline.actions import Action, Schedule
from dtcourse.pipeline.lowering import Program, lower
from dtcourse.pipeline.schedules import interleaved

WORLDS = (1, 2, 3, 4)


@pytest.fixture(scope="module", params=["auto", "gloo"])
def clusters(request):
    """`auto` is our shared memory."""
    with ExitStack() as stack:
        yield {world: stack.enter_context(Cluster(world, backend=request.param)) for world in WORLDS}


def walk(programs: tuple[Program, ...], schedule: Schedule) -> list[tuple[str, int, int]]:
    """Run a rank's program with messages that say what they are, and return its actions as they were done."""
    rank, done = dist.get_rank(), []
    names = ("activation", "gradient")
    there = set()
    for line in programs[rank]:
        if isinstance(line, Action):
            assert there.issuperset(schedule.needs(line)), f"{line} lacks one of {schedule.needs(line)}"
            there.add(schedule.makes(line))
            done.append(tuple(line))
            continue
        operations, arriving = [], []
        for value, source, to in line.transfers:
            if source == rank:
                content = torch.tensor([names.index(value.name), value.microbatch, value.stage])
                operations.append(dist.P2POp(dist.isend, content, to))
            else:
                arriving.append((value, torch.full((3,), -1)))
                operations.append(dist.P2POp(dist.irecv, arriving[-1][1], source))
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        for value, content in arriving:
            assert content.tolist() == [names.index(value.name), value.microbatch, value.stage]
            there.add(value)
    return done


def schedules(world: int) -> list[Schedule]:
    made = [make(world, microbatches) for make in ONE_STAGE_A_RANK for microbatches in (1, 2, 5, 9)]
    return made + [interleaved(world, world * groups, chunks) for groups in (1, 3) for chunks in (2, 3)]


@pytest.mark.parametrize("world", WORLDS)
def test_the_messages_of_every_schedule_arrive(clusters, world):
    for schedule in schedules(world):
        run = clusters[world].run(walk, lower(schedule), schedule)
        planned = [[tuple(action) for action in actions] for actions in schedule.ranks]
        assert run.results == planned
        messages = sum(event.op == "send" for event in run.events)
        boundaries = schedule.stages - 1 if world > 1 else 0
        assert messages == 2 * boundaries * schedule.microbatches
