"""What it costs to be recorded: the same messages through the recorder and through the group inside it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
import torch.distributed as dist

from benchmarks.table import Row
from dtcourse import Cluster


def rows() -> Iterator[Row]:
    with Cluster(2, backend="gloo") as cluster:
        recorded, bare = _best(cluster, elements=1, messages=100)
        yield Row("recording, an event (100 messages in flight)", "us", (recorded - bare) * 1e6, 15)
        for megabytes in (1, 4, 16):
            recorded, bare = _best(cluster, megabytes << 18, messages=16 // megabytes)
            yield Row(f"a recorded message of {megabytes} MB", "ms", recorded * 1e3, 1.10, bare * 1e3, "not recorded")


def _best(cluster: Cluster, elements: int, messages: int) -> tuple[float, float]:
    """Seconds a message, recorded and not, of the slower rank: the best of many rounds, which take turns."""
    runs = [cluster.run(_seconds_a_message, elements, messages) for _ in range(40)]
    return tuple(min(max(r[side] for r in run.results) for run in runs) for side in (0, 1))  # type: ignore[return-value]


def _seconds_a_message(elements: int, messages: int) -> list[float]:
    group, rank, taken = dist.group.WORLD, dist.get_rank(), []
    tensors = [torch.zeros(elements) for _ in range(messages)]
    for channel in (group, group.inner) * 2:  # the first round of each warms up
        channel.barrier(dist.BarrierOptions()).wait()
        start = time.perf_counter()
        works = [(channel.send if rank == 0 else channel.recv)([t], 1 - rank, 0) for t in tensors]
        for work in works:
            work.wait()
        taken.append((time.perf_counter() - start) / messages)
    return taken[2:]
