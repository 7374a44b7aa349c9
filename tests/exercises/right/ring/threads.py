"""A thread receives while the main one sends."""

from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist


def step(outgoing, count, like, group):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    arriving = torch.empty(count, dtype=like.dtype)
    with ThreadPoolExecutor(1) as pool:
        receiving = pool.submit(dist.recv, arriving, group=group, group_src=(rank - 1) % world)
        dist.send(outgoing, group=group, group_dst=(rank + 1) % world)
        receiving.result()
    return arriving


def ring_reduce_scatter(tensor, group=None):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    chunks = tensor.view(-1).tensor_split(world)
    for i in range(world - 1):
        mine = chunks[(rank - i - 1) % world]
        mine += step(chunks[(rank - i) % world], len(mine), mine, group)


def ring_all_gather(tensor, group=None):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    chunks = tensor.view(-1).tensor_split(world)
    for i in range(world - 1):
        mine = chunks[(rank - i) % world]
        mine[:] = step(chunks[(rank - i + 1) % world], len(mine), mine, group)


def ring_all_reduce(tensor, group=None):
    ring_reduce_scatter(tensor, group)
    ring_all_gather(tensor, group)
