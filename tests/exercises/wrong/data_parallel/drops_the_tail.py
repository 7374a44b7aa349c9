"""All shares of the same size, and nobody takes what is left over."""
# message: share on 2 ranks, 5 samples: sample 4 goes to no rank: it has to go to exactly one

import torch
import torch.distributed as dist


def share(samples, rank, world):
    size = samples // world
    return slice(rank * size, (rank + 1) * size)


def average_gradients(model, samples, group=None):
    total = torch.tensor(samples)
    dist.all_reduce(total, group=group)
    for parameter in model.parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        parameter.grad *= samples
        dist.all_reduce(parameter.grad, group=group)
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
