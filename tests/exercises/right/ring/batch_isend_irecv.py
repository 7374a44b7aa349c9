"""Both operations of a step in one batch, as NCCL wants them."""

import torch
import torch.distributed as dist


def ring_reduce_scatter(tensor, group=None):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    chunks = tensor.view(-1).tensor_split(world)
    for i in range(world - 1):
        target = chunks[(rank - i - 1) % world]
        received = torch.empty_like(target)
        swap(chunks[(rank - i) % world], received, group)
        target.add_(received)


def ring_all_gather(tensor, group=None):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    chunks = tensor.view(-1).tensor_split(world)
    for i in range(world - 1):
        swap(chunks[(rank - i + 1) % world], chunks[(rank - i) % world], group)


def ring_all_reduce(tensor, group=None):
    ring_reduce_scatter(tensor, group)
    ring_all_gather(tensor, group)


def swap(out, into, group):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    receive = dist.P2POp(dist.irecv, into, group=group, group_peer=(rank - 1) % world)
    send = dist.P2POp(dist.isend, out, group=group, group_peer=(rank + 1) % world)
    for work in dist.batch_isend_irecv([receive, send]):
        work.wait()
