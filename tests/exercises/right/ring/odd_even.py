"""Blocking send and recv: even ranks send first, odd ranks receive first, so that nobody waits for ever."""

import torch
import torch.distributed as dist


def pass_on(out, into, group):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    if rank % 2 == 0:
        dist.send(out, group=group, group_dst=(rank + 1) % world)
        dist.recv(into, group=group, group_src=(rank - 1) % world)
    else:
        dist.recv(into, group=group, group_src=(rank - 1) % world)
        dist.send(out, group=group, group_dst=(rank + 1) % world)


def ring_reduce_scatter(tensor, group=None):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    chunks = tensor.view(-1).tensor_split(world)
    for i in range(world - 1):
        sent, kept = chunks[(rank - i) % world], chunks[(rank - i - 1) % world]
        received = torch.empty_like(kept)
        pass_on(sent, received, group)
        kept += received


def ring_all_gather(tensor, group=None):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    chunks = tensor.view(-1).tensor_split(world)
    for i in range(world - 1):
        pass_on(chunks[(rank - i + 1) % world], chunks[(rank - i) % world], group)


def ring_all_reduce(tensor, group=None):
    ring_reduce_scatter(tensor, group)
    ring_all_gather(tensor, group)
