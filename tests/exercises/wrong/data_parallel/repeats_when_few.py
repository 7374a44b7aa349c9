"""With fewer samples than ranks, the ranks that would have none take the last one again."""
# message: share on 2 ranks, 1 sample: sample 0 goes to ranks 0 and 1(.|\n)*  rank 1   x

import torch
import torch.distributed as dist


def share(samples, rank, world):
    least, more = divmod(samples, world)
    start = rank * least + min(rank, more)
    if samples and start == samples:
        return slice(samples - 1, samples)
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
