"""irecv is posted before isend, and the receive is waited for first."""

import torch
import torch.distributed as dist


def ring_reduce_scatter(tensor, group=None):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    chunks = list(tensor.view(-1).tensor_split(world))
    for i in range(world - 1):
        take = (rank - i - 1) % world
        buffer = torch.zeros_like(chunks[take])
        receiving = dist.irecv(buffer, group=group, group_src=(rank - 1) % world)
        sending = dist.isend(chunks[(rank - i) % world], group=group, group_dst=(rank + 1) % world)
        receiving.wait()
        chunks[take] += buffer
        sending.wait()


def ring_all_gather(tensor, group=None):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    chunks = tensor.view(-1).tensor_split(world)
    for i in range(world - 1):
        receiving = dist.irecv(chunks[(rank - i) % world], group=group, group_src=(rank - 1) % world)
        dist.isend(chunks[(rank - i + 1) % world], group=group, group_dst=(rank + 1) % world).wait()
        receiving.wait()


def ring_all_reduce(tensor, group=None):
    ring_reduce_scatter(tensor, group)
    ring_all_gather(tensor, group)
