"""All-reduce through one root: everybody sends to rank 0, which adds up and sends the sum back.

The naive way. With N ranks and S bytes, rank 0 receives (N-1) S and sends (N-1) S through its one port, while every
other rank sends S and receives S: the root's time grows linearly with the number of ranks.
"""

from __future__ import annotations

import torch
import torch.distributed as dist


def root_all_reduce(tensor: torch.Tensor, group: dist.ProcessGroup | None = None) -> None:
    """Sum `tensor` (any shape, contiguous) over the ranks of `group`, in place, on every rank."""
    if not tensor.is_contiguous():
        raise ValueError("root_all_reduce works in place on contiguous tensors: pass tensor.contiguous()")
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    if rank == 0:
        contribution = torch.empty_like(tensor)
        for source in range(1, world):
            dist.recv(contribution, group_src=source, group=group)
            tensor += contribution
        for destination in range(1, world):
            dist.send(tensor, group_dst=destination, group=group)
    else:
        dist.send(tensor, group_dst=0, group=group)
        dist.recv(tensor, group_src=0, group=group)
