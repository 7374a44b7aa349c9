"""The gradients are reduced to a rank and broadcast; the counts travel as objects; the root takes whoever comes."""

import torch
import torch.distributed as dist


def share(samples, rank, world):
    ends = [samples * 0] + [sum(samples // world + (r < samples % world) for r in range(n + 1)) for n in range(world)]
    return range(ends[rank], ends[rank + 1])


def average_gradients(model, samples, group=None):
    counts = [None] * dist.get_world_size(group)
    dist.all_gather_object(counts, samples, group=group)
    for parameter in model.parameters():
        if samples == 0:
            parameter.grad = torch.zeros_like(parameter)
        parameter.grad.mul_(samples / sum(counts))
        dist.reduce(parameter.grad, group=group, group_dst=0)
        dist.broadcast(parameter.grad, group=group, group_src=0)


def root_all_reduce(tensor, root=0, group=None):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    if rank == root:
        total = tensor.clone()
        for _ in range(world - 1):
            arriving = torch.empty_like(tensor)
            dist.recv(arriving, group=group)
            total += arriving
        tensor.copy_(total)
        for other in set(range(world)) - {root}:
            dist.send(total.clone(), group=group, group_dst=other)
    else:
        dist.send(tensor.clone(), group=group, group_dst=root)
        dist.recv(tensor, group=group, group_src=root)
