"""Runs of data parallelism made by hand: passes, and all-reduces beside them, at times that are known."""

from __future__ import annotations

import random

from dtcourse.events import REGION, Event
from dtcourse.run import Run

MS = 1_000_000


def did(rank: int, name: str, start: float, end: float | None, kind: str = REGION, **more) -> Event:
    times = {"posted": round(start * MS), "ended": None if end is None else round(end * MS)}
    return Event(rank, 0, kind, name, **times, **more)


def reduced(rank: int, bucket: int, start: float, end: float | None) -> Event:
    return did(rank, "all-reduce", start, end, labels={"bucket": bucket})


def two_ranks() -> Run:
    """Rank 0 overlaps 8 of 12 ms, rank 1 6 of 10; the step takes 30 ms, from 5 on."""
    events = [did(0, "forward", 5, 10), did(0, "backward", 10, 30), reduced(0, 0, 22, 26), reduced(0, 1, 26, 34)]
    events += [did(1, "forward", 6, 12), did(1, "backward", 12, 31), reduced(1, 0, 23, 26), reduced(1, 1, 28, 35)]
    return Run(2, function="train", events=events)


def random_run(seed: int, steps: int = 3, world: int = 3) -> Run:
    """Steps in lockstep; in each every rank has passes, buckets one after the other, messages inside of them."""
    chance, events, at = random.Random(seed), [], 10.0
    for _ in range(steps):
        ends = []
        for rank in range(world):
            begin = at + chance.random()
            middle, end = begin + 5 + chance.random(), begin + 20 + 9 * chance.random()
            events += [did(rank, "forward", begin, middle), did(rank, "backward", middle, end)]
            free = middle + 8
            for bucket in range(4):
                start = free + 2 * chance.random()
                free = start + 8 * chance.random()
                inside = {"group": tuple(range(world)), "bytes": 8, "peer": (rank + 1) % world}
                events += [reduced(rank, bucket, start, free), did(rank, "send", start, free, "send", **inside)]
            ends.append(max(free, end))
        at = max(ends) + 1
    return Run(world, function="train", events=sorted(events, key=lambda e: (e.posted, e.rank)))
