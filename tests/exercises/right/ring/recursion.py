"""Each step calls the next one; functools does the rest."""

from functools import partial

import torch
import torch.distributed as dist


def turn(tensor, group, first, left, take):
    if left == 0:
        return
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    chunks = tensor.view(-1).tensor_split(world)
    arriving = torch.empty_like(chunks[(first - 1) % world])
    works = [
        dist.irecv(arriving, group=group, group_src=(rank - 1) % world),
        dist.isend(chunks[first % world], group=group, group_dst=(rank + 1) % world),
    ]
    for work in reversed(works):
        work.wait()
    take(chunks[(first - 1) % world], arriving)
    turn(tensor, group, first - 1, left - 1, take)


def halves(tensor, group, offset, take):
    turn(tensor, group, dist.get_rank(group) + offset, dist.get_world_size(group) - 1, take)


ring_reduce_scatter = partial(halves, group=None, offset=0, take=torch.Tensor.add_)
ring_all_gather = partial(halves, group=None, offset=1, take=torch.Tensor.copy_)


def ring_all_reduce(tensor, group=None):
    ring_reduce_scatter(tensor, group=group)
    ring_all_gather(tensor, group=group)
