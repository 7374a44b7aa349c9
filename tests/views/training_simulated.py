"""Trainings with a parameter server as hand-made runs: who pushes when is worked out, nothing is computed."""

from __future__ import annotations

import heapq
import random

from dtcourse.events import MARK, Event
from dtcourse.run import Run

MS = 1_000_000


def asynchronous_run(workers: int = 4, steps: int = 50, slowest: float = 1.0, seed: int = 0, servers: int = 1) -> Run:
    """Each gradient is applied at once and answered with the newest version, `workers * steps` of them. A step takes
    10 ms, give or take a tenth, and the last worker's `slowest` times as long. The loss halves every 40 updates."""
    chance, events, version = random.Random(seed), [], 0
    ranks = range(servers, servers + workers)

    def took(rank: int) -> int:
        return round(10 * MS * chance.uniform(0.9, 1.1) * (slowest if rank == ranks[-1] else 1))

    def marked(rank: int, at: int, name: str, **labels: float) -> None:
        events.append(Event(rank, len(events), MARK, name, posted=at, ended=at, labels=labels))

    waiting = [(took(rank), rank, 0, 0) for rank in ranks]  # when it pushes, who, its step, the version it pulled
    heapq.heapify(waiting)
    while version < workers * steps:
        at, rank, step, pulled = heapq.heappop(waiting)
        loss = 2.3 * 0.5 ** (pulled / 40) * chance.uniform(0.8, 1.2) + 0.05
        marked(rank, at, "loss", value=loss, step=step, version=pulled)
        staleness, version = version - pulled, version + 1
        for server in range(servers):
            marked(server, at + MS // 10, "update", version=version, worker=rank, step=step, staleness=staleness)
        heapq.heappush(waiting, (at + took(rank), rank, step + 1, version))
    return Run(servers + workers, function="asynchronous", events=events, seconds=at / 1e9, backend="simulated")


def synchronous_run(workers: int = 4, steps: int = 50, slowest: float = 1.0, seed: int = 0) -> Run:
    """All wait for the slowest; one update a step, with a gradient of each worker."""
    chance, events, at = random.Random(seed), [], 0
    for step in range(steps):
        at += round(10 * MS * chance.uniform(1.0, 1.1) * slowest)
        for rank in range(1, workers + 1):
            loss = 2.3 * 0.5 ** (step / 15) * chance.uniform(0.85, 1.15) + 0.05
            labels = {"value": loss, "step": step, "version": step}
            events.append(Event(rank, len(events), MARK, "loss", posted=at, ended=at, labels=labels))
            labels = {"version": step + 1, "worker": rank, "step": step, "staleness": 0}
            events.append(Event(0, len(events), MARK, "update", posted=at + MS, ended=at + MS, labels=labels))
    return Run(workers + 1, function="synchronous", events=events, seconds=at / 1e9, backend="simulated")
