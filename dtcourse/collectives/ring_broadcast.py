"""Ring broadcast: the root's tensor goes round the ring in N chunks, and each rank passes on while it receives.

Rank root+h is h hops away from the root. It receives chunk k in step k+h-1 and sends it to its right neighbour in step
k+h, while chunk k+1 arrives; the last rank of the ring sends nothing. For N = 4 and root 0, the chunk that each rank
sends in each step:

    step           0  1  2  3  4  5
    rank 0 sends   0  1  2  3  -  -
    rank 1 sends   -  0  1  2  3  -
    rank 2 sends   -  -  0  1  2  3
    rank 3 sends   -  -  -  -  -  -

Cost, with latency a and b seconds a byte: 2 (N-1) (a + S/N b), so never more than twice the time that one port needs
for the tensor, whatever N. Each rank but the last sends exactly S. A tree (`tree.py`) takes ceil(log2 N) (a + S b):
better for few bytes, worse for many.

Source: Patarasuk, Faraj and Yuan, "Pipelined broadcast on Ethernet switched clusters" (2006); NCCL's broadcast.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from dtcourse.collectives.chunks import chunks_of
from dtcourse.collectives.tree import place_above


def ring_broadcast(tensor: torch.Tensor, root: int = 0, group: dist.ProcessGroup | None = None) -> None:
    """Give every rank of `group` the tensor of its rank `root`, in place. Any shape, the same everywhere."""
    rank, world, hops = dist.get_rank(group), dist.get_world_size(group), place_above(root, group)
    chunks = chunks_of(tensor, world)
    for step in range(2 * (world - 1)):
        sent, received = step - hops, step - hops + 1  # chunks, if there are such
        operations = []
        if hops < world - 1 and 0 <= sent < world:
            right = (rank + 1) % world
            operations.append(dist.P2POp(dist.isend, chunks[sent], group=group, group_peer=right))
        if hops > 0 and 0 <= received < world:
            left = (rank - 1) % world
            operations.append(dist.P2POp(dist.irecv, chunks[received], group=group, group_peer=left))
        for work in dist.batch_isend_irecv(operations) if operations else ():
            work.wait()
