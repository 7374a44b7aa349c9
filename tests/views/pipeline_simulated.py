"""Runs of a pipeline made by hand: the times of `simulate`, a little late, as the regions that `Pipeline` makes."""

from __future__ import annotations

import random

from dtcourse.events import REGION, Event
from dtcourse.pipeline.actions import Schedule
from dtcourse.pipeline.simulate import Costs, simulate
from dtcourse.pipeline.versions import weight_versions
from dtcourse.run import Run

MS = 1_000_000
REGIONS = {"F": "forward", "B": "backward", "I": "input", "W": "weight"}


def pipeline_run(
    schedule: Schedule, steps: int = 1, late: float = 0.0, costs: Costs | None = None, seed: int = 0
) -> Run:
    """A unit of cost takes 1 ms, and every action up to `late` times as long again. Of an asynchronous schedule the
    regions have the version of their weights: the one of their stage at that time, `naive`."""
    chance, events, at, world = random.Random(seed), [], 5 * MS, len(schedule.ranks)
    for step in range(steps):
        slower = Costs(*[[(1 + late * chance.random()) * c for _ in range(schedule.stages)] for c in _costs(costs)])
        timeline = simulate(schedule, slower)
        versions = weight_versions(schedule)
        for rank, spans in enumerate(timeline.ranks):
            for (kind, microbatch, stage), start, end in spans:
                labels = {"microbatch": microbatch, "stage": stage}
                if schedule.asynchronous:
                    met = versions[stage][microbatch]
                    met = met.forward if kind == "F" else met.backward
                    labels["version"] = step * schedule.microbatches + met
                times = {"posted": at + round(start * MS), "ended": at + round(end * MS)}
                events.append(Event(rank, len(events), REGION, REGIONS[kind], labels=labels, **times))
        at += round(timeline.makespan * MS) + MS
    return Run(world, function="train", events=events, seconds=at / 1e9, backend="simulated")


def _costs(costs: Costs | None) -> tuple[float, float, float]:
    costs = costs or Costs()
    return costs.forward, costs.input, costs.weight
