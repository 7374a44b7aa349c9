"""The runner on real ranks: whatever the schedule, the gradients are those of one process with the whole batch.

And the order, the memory and the messages are those of the plan.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from every_schedule import ONE_STAGE_A_RANK
from piped_models import (
    alone,
    batch,
    gradients,
    layers,
    mean_of_squares,
    own,
    same,
    sum_of_squares,
)
from torch.multiprocessing.reductions import StorageWeakRef

from dtcourse.pipeline.actions import Kind, Schedule
from dtcourse.pipeline.runner import Pipeline
from dtcourse.pipeline.schedules import interleaved, pipedream
from dtcourse.pipeline.simulate import peak_activations
from dtcourse.pipeline.versions import weight_versions
from dtcourse.pipeline.weights import Naive, Stashing

WORLDS = (1, 2, 3, 4)
SYNCHRONOUS = [make for make in ONE_STAGE_A_RANK if make is not pipedream]
REGIONS = {"forward": Kind.FORWARD, "backward": Kind.BACKWARD, "input": Kind.INPUT, "weight": Kind.WEIGHT}


# -- gradients --------------------------------------------------------------------------------------------------------


def cases(world: int, microbatches: range) -> list[tuple[Schedule, str, int]]:
    schedules = [make(world, many) for make in SYNCHRONOUS for many in microbatches]
    schedules += [interleaved(world, world * groups, chunks) for groups in (1, 2) for chunks in (2, 3)]
    return [
        (schedule, reduction, schedule.microbatches * 2 + more)
        for schedule in schedules
        for reduction, more in (("mean", 1), ("sum", 0))  # the mean with a tail
    ]


def wrong(cases: list[tuple[Schedule, str, int]]) -> list[int]:
    """The cases in which this rank has another loss or other gradients than one process."""
    found = []
    for number, (schedule, reduction, size) in enumerate(cases):
        modules = own(schedule.stages)
        loss = {"mean": mean_of_squares, "sum": sum_of_squares}[reduction]
        value = Pipeline(schedule, modules, loss, reduction=reduction).step(*batch(size))
        expected_value, expected = alone(layers(schedule.stages), loss, *batch(size))
        expected_value = expected_value if schedule.stages - 1 in modules else None
        right = [same(gradients(module), expected[stage]) for stage, module in modules.items()]
        if not all(right) or not same([value], [expected_value]):
            found.append(number)
    return found


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize(("backend", "microbatches"), [("auto", range(1, 10)), ("gloo", range(1, 10, 3))])
def test_every_synchronous_schedule_gives_the_gradients_of_the_whole_batch(cluster, backend, microbatches, world):
    assert cluster(world, backend).run(wrong, cases(world, microbatches)).results == [[]] * world


# -- order, memory, messages ------------------------------------------------------------------------------------------


def walked(schedules: list[Schedule]) -> list[int]:
    """Run each schedule; for each the most activations that this rank had at once."""
    peaks = []
    for schedule in schedules:
        modules, inside, coming = own(schedule.stages), Living(), Living()
        for stage, module in modules.items():
            module[1].register_forward_hook(lambda _, __, tanh, inside=inside: inside.add(tanh))
            if stage > 0:  # the first one's are parts of the batch
                module.register_forward_pre_hook(lambda _, inputs, coming=coming: coming.add(*inputs))
        Pipeline(schedule, modules, mean_of_squares).step(*batch(20))
        peaks.append(max(inside.most, coming.most))
    return peaks


class Living:
    """The most tensors that lived at once, of those that were added."""

    def __init__(self):
        self.refs, self.most = [], 0

    def add(self, tensor):
        self.refs.append(StorageWeakRef(tensor.untyped_storage()))
        self.most = max(self.most, sum(not ref.expired() for ref in self.refs))


@pytest.mark.parametrize("world", [1, 3, 4])
def test_a_rank_does_what_is_planned_and_keeps_what_is_planned(cluster, world):
    schedules = [make(world, 9) for make in SYNCHRONOUS] + [interleaved(world, 2 * world, 2)]
    run = cluster(world).run(walked, schedules)
    assert list(zip(*run.results, strict=True)) == [peak_activations(schedule) for schedule in schedules]
    for rank in range(world):
        planned = [action for schedule in schedules for action in schedule.ranks[rank]]
        regions = sorted((e for e in run.events if e.rank == rank and e.op in REGIONS), key=lambda e: e.posted)
        assert [(REGIONS[e.op], e.labels["microbatch"], e.labels["stage"]) for e in regions] == planned
        assert all(set(e.labels) == {"microbatch", "stage"} for e in regions)
    assert len(run.messages()) == sum(2 * (s.stages - 1) * s.microbatches for s in schedules if world > 1)


def asynchronous(policy, schedule: Schedule) -> None:
    modules = own(schedule.stages)
    weights = {s: policy(module, torch.optim.SGD(module.parameters(), lr=0.1)) for s, module in modules.items()}
    pipeline = Pipeline(schedule, modules, mean_of_squares, weights=weights)
    losses = pipeline.step(*batch(2 * schedule.microbatches))
    assert losses is None or losses.shape == (schedule.microbatches,)


@pytest.mark.parametrize("policy", [Naive, Stashing])
def test_an_asynchronous_schedule_labels_the_versions(cluster, policy):
    schedule = pipedream(3, 7)
    run = cluster(3).run(asynchronous, policy, schedule)
    for stage, versions in enumerate(weight_versions(schedule)):
        for microbatch, version in enumerate(versions):
            labels = {"microbatch": microbatch, "stage": stage}
            found = {
                e.op: e.labels["version"] for e in run.events if e.op in REGIONS and {**e.labels, **labels} == e.labels
            }
            backward = version.forward if policy is Stashing else version.backward
            assert found == {"forward": version.forward, "backward": backward}


def test_the_same_file_in_plain_processes(tmp_path):
    """As torchrun starts them, but over a file and loopback."""
    script = Path(__file__).with_name("pipeline_without_a_cluster.py")
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo"}
    command = [sys.executable, script]
    ranks = [subprocess.Popen([*command, str(r), tmp_path / "store"], env=environment) for r in range(3)]
    assert [rank.wait() for rank in ranks] == [0, 0, 0]
