"""`calibrate`: how fast messages really are between two ranks, by ping-pong."""

from __future__ import annotations

import math
import time
from typing import Any

import torch
import torch.distributed as dist

from dtcourse.network.link import Link

_SMALLEST, _LARGEST = 4, 64 << 20  # bytes
_ENOUGH = 0.005  # seconds
_TRIES, _ROUNDS = 5, 2


def calibrate(cluster: Any) -> Link:
    """The link between the ranks 0 and 1 of a cluster, as they see it: their own doings for a message are in it.

    The smallest message gives the latency. Larger ones follow, until one takes so long that its bytes are what counts;
    that one gives the bandwidth. `cluster` runs a function on its ranks, as `Cluster` does. Raises ValueError if it has
    one rank alone.
    """
    if cluster.world_size < 2:
        raise ValueError("calibrate needs two ranks: one has nobody to send to")

    def seconds(size: int) -> float:
        return cluster.run(_one_way, size).results[0]

    size, latency = 1024, seconds(_SMALLEST)
    while (taken := seconds(size)) < max(4 * latency, _ENOUGH) and size < _LARGEST:
        size *= 4
    for_the_bytes = max(taken - latency, 1e-9)  # a machine may be so busy that the short message took longer
    # ... or the long one so long that the short one's bytes would take more than all of it
    of_the_smallest = _SMALLEST / (size - _SMALLEST) * for_the_bytes
    return Link((size - _SMALLEST) / for_the_bytes, max(latency - of_the_smallest, 0.0))


def _one_way(size: int) -> float:
    """On a rank: seconds of a message between the ranks 0 and 1, half of there and back.

    The fastest of some tries, as other work on the machine only ever delays.
    """
    rank, x, best = dist.get_rank(), torch.zeros(size, dtype=torch.uint8), math.inf
    for _ in range(_TRIES):
        dist.barrier()
        start = time.perf_counter()
        for step in range(2 * _ROUNDS) if rank < 2 else ():
            if step % 2 == rank:
                dist.send(x, 1 - rank)
            else:
                dist.recv(x, 1 - rank)
        if x.is_cuda:
            torch.cuda.synchronize()
        best = min(best, (time.perf_counter() - start) / (2 * _ROUNDS))
    return best
