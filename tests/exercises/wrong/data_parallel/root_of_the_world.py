"""Takes `root` for a rank of the world and not of the group."""
# message: on 5 ranks, .*: rank 2 raised ValueError: Invalid destination rank(.|\n)*Only ranks 1, 2, 4 call it

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
        dist.all_reduce(parameter.grad, group=group)
        parameter.grad /= total


def root_all_reduce(tensor, root=0, group=None):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    if rank != root:
        dist.send(tensor, dst=root, group=group)
        dist.recv(tensor, src=root, group=group)
        return
    others = [other for other in range(world) if other != root]
    arriving = torch.empty_like(tensor)
    for other in others:
        dist.recv(arriving, group=group, group_src=other)
        tensor += arriving
    for other in others:
        dist.send(tensor, group=group, group_dst=other)
