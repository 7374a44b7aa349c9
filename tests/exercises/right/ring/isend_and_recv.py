"""Start the send, receive blocking, then wait for the send; the neighbours as global ranks."""

import torch
import torch.distributed as dist


def neighbours(group):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    if group is None:
        return (rank - 1) % world, (rank + 1) % world
    ranks = dist.get_process_group_ranks(group)
    return ranks[(rank - 1) % world], ranks[(rank + 1) % world]


def ring_reduce_scatter(tensor, group=None):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    left, right = neighbours(group)
    chunks = tensor.view(-1).tensor_split(world)
    for step in range(1, world):
        handle = dist.isend(chunks[(rank - step + 1) % world], right, group=group)
        incoming = torch.empty_like(chunks[(rank - step) % world])
        dist.recv(incoming, left, group=group)
        handle.wait()
        chunks[(rank - step) % world].copy_(chunks[(rank - step) % world] + incoming)


def ring_all_gather(tensor, group=None):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    left, right = neighbours(group)
    chunks = tensor.view(-1).tensor_split(world)
    for step in range(1, world):
        handle = dist.isend(chunks[(rank - step + 2) % world], right, group=group)
        dist.recv(chunks[(rank - step + 1) % world], left, group=group)
        handle.wait()


def ring_all_reduce(tensor, group=None):
    ring_reduce_scatter(tensor, group)
    ring_all_gather(tensor, group)
