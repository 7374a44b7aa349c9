"""Copies everywhere: clones are sent, and results are copied back by index."""

import torch
import torch.distributed as dist


def bounds(length, world):
    base, rest = divmod(length, world)
    starts = [k * base + min(k, rest) for k in range(world + 1)]
    return [(starts[k], starts[k + 1]) for k in range(world)]


def step(outgoing, count, like, group):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    incoming = torch.empty(count, dtype=like.dtype)
    works = [
        dist.isend(outgoing.clone(), group=group, group_dst=(rank + 1) % world),
        dist.irecv(incoming, group=group, group_src=(rank - 1) % world),
    ]
    for work in works:
        work.wait()
    return incoming


def ring_reduce_scatter(tensor, group=None):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    flat = tensor.flatten()  # a view, as the tensor is contiguous
    cut = bounds(len(flat), world)
    for i in range(world - 1):
        (a, b), (c, d) = cut[(rank - i) % world], cut[(rank - i - 1) % world]
        flat[c:d] = flat[c:d].clone() + step(flat[a:b], d - c, flat, group)


def ring_all_gather(tensor, group=None):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    flat = tensor.view(-1)
    cut = bounds(len(flat), world)
    for i in range(world - 1):
        (a, b), (c, d) = cut[(rank - i + 1) % world], cut[(rank - i) % world]
        flat[c:d] = step(flat[a:b], d - c, flat, group)


def ring_all_reduce(tensor, group=None):
    ring_reduce_scatter(tensor, group)
    ring_all_gather(tensor, group)
