"""Weights, divides, and forgets to add up."""
# message: 2 \+ 2 samples: rank 0 ends with 1/2 g\[0\] as gradient of 0.weight; .* That is its own part alone

import torch
import torch.distributed as dist


def share(samples, rank, world):
    least, more = divmod(samples, world)
    start = rank * least + min(rank, more)
    return slice(start, start + least + (rank < more))


def average_gradients(model, samples, group=None):
    total = torch.tensor(samples)
    dist.all_reduce(total, group=group)
    for parameter in model.parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        parameter.grad *= samples
        parameter.grad /= total


def root_all_reduce(tensor, root=0, group=None):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    if rank != root:
        dist.send(tensor, group=group, group_dst=root)
        dist.recv(tensor, group=group, group_src=root)
        return
    others = [other for other in range(world) if other != root]
    arriving = torch.empty_like(tensor)
    for other in others:
        dist.recv(arriving, group=group, group_src=other)
        tensor += arriving
    for other in others:
        dist.send(tensor, group=group, group_dst=other)
