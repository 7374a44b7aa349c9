"""Divides by its own number of samples, times the number of ranks."""
# message: 3 \+ 1 samples: .*1/2 g\[0\] \+ 1/6 g\[1\] .*\. The others do not have as many samples

import torch
import torch.distributed as dist


def share(samples, rank, world):
    least, more = divmod(samples, world)
    start = rank * least + min(rank, more)
    return slice(start, start + least + (rank < more))


def average_gradients(model, samples, group=None):
    for parameter in model.parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        parameter.grad *= samples
        dist.all_reduce(parameter.grad, group=group)
        parameter.grad /= max(samples, 1) * dist.get_world_size(group)


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
