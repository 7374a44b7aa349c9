"""NumPy does the arithmetic and the cutting."""

import numpy as np
import torch
import torch.distributed as dist


def exchange(out, into, group):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    sending = dist.isend(torch.from_numpy(np.ascontiguousarray(out)), group=group, group_dst=(rank + 1) % world)
    received = torch.from_numpy(into)
    receiving = dist.irecv(received, group=group, group_src=(rank - 1) % world)
    sending.wait()
    receiving.wait()


def ring_reduce_scatter(tensor, group=None):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    chunks = np.array_split(tensor.view(-1).numpy(), world)
    for i in range(world - 1):
        mine = chunks[(rank - i - 1) % world]
        received = np.empty_like(mine)
        exchange(chunks[(rank - i) % world], received, group)
        np.add(mine, received, out=mine)


def ring_all_gather(tensor, group=None):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    chunks = np.array_split(tensor.view(-1).numpy(), world)
    for i in range(world - 1):
        exchange(chunks[(rank - i + 1) % world], chunks[(rank - i) % world], group)


def ring_all_reduce(tensor, group=None):
    ring_reduce_scatter(tensor, group)
    ring_all_gather(tensor, group)
