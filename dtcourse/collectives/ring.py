"""Ring all-reduce: every rank sends to its right neighbour only, one chunk at a time.

The tensor is cut into N chunks, one per rank. Two phases of N-1 steps each:

    reduce-scatter   in step i rank j sends chunk j-i and adds what it receives to chunk j-i-1;
                     in the end rank j holds the complete sum of chunk j+1
    all-gather       in step i rank j sends chunk j+1-i and overwrites chunk j-i with what it receives
                                                                              (all modulo N)
For N = 4, the chunk that rank j sends in each step:

    step           0  1  2 | 3  4  5
    rank 0 sends   0  3  2 | 1  0  3
    rank 1 sends   1  0  3 | 2  1  0
    rank 2 sends   2  1  0 | 3  2  1
    rank 3 sends   3  2  1 | 0  3  2

Cost: each rank sends 2 (N-1)/N S bytes, whatever N: no port is hotter than another. With chunks of c[k] bytes that is
exactly 2 S - c[(j+1) mod N] - c[(j+2) mod N] for rank j. The price is latency: 2 (N-1) steps.

Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations" (2009); brought to
deep learning by Baidu's baidu-allreduce (2017).
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from dtcourse.collectives.chunks import chunks_of


def ring_all_reduce(tensor: torch.Tensor, group: dist.ProcessGroup | None = None) -> None:
    """Sum `tensor` (any shape, contiguous) over the ranks of `group`, in place, on every rank."""
    ring_reduce_scatter(tensor, group)
    ring_all_gather(tensor, group)


def ring_reduce_scatter(tensor: torch.Tensor, group: dist.ProcessGroup | None = None) -> None:
    """Sum over the ranks, in place: afterwards chunk (j+1) mod N of rank j is complete; the rest is partial sums."""
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    chunks = chunks_of(tensor, world)
    received = torch.empty_like(chunks[0])  # chunk 0 is never shorter than another
    for step in range(world - 1):
        outgoing, growing = chunks[(rank - step) % world], chunks[(rank - step - 1) % world]
        incoming = received[: growing.numel()]
        pass_on(outgoing, incoming, group)
        growing += incoming


def ring_all_gather(tensor: torch.Tensor, group: dist.ProcessGroup | None = None) -> None:
    """Give every rank all chunks, in place, where rank j starts with the right chunk (j+1) mod N."""
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    chunks = chunks_of(tensor, world)
    for step in range(world - 1):
        pass_on(chunks[(rank + 1 - step) % world], chunks[(rank - step) % world], group)


def pass_on(outgoing: torch.Tensor, incoming: torch.Tensor, group: dist.ProcessGroup | None = None) -> None:
    """Send to the right neighbour while receiving from the left one.

    Both at once: if all ranks sent first, each would wait for its neighbour to receive, for ever.
    """
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    for work in dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, outgoing, group=group, group_peer=(rank + 1) % world),
            dist.P2POp(dist.irecv, incoming, group=group, group_peer=(rank - 1) % world),
        ]
    ):
        work.wait()
