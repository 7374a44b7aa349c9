"""Weights first, then what an all-reduce is made of: reduce-scatter and all-gather; NumPy cuts the shares."""

import numpy as np
import torch
import torch.distributed as dist


def share(samples, rank, world):
    return np.array_split(np.arange(samples), world)[rank]


def average_gradients(model, samples, group=None):
    world = dist.get_world_size(group)
    total = torch.tensor(samples)
    dist.all_reduce(total, group=group)
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    vector = torch.cat([g.flatten() for g in gradients]) * (samples / total)
    length = len(vector)
    vector = torch.cat([vector, vector.new_zeros(-length % world)])
    own = vector.new_empty(len(vector) // world)
    dist.reduce_scatter(own, list(vector.chunk(world)), group=group)
    dist.all_gather(list(vector.chunk(world)), own, group=group)
    for parameter, gradient in zip(
        model.parameters(), vector[:length].split([g.numel() for g in gradients]), strict=True
    ):
        parameter.grad = gradient.view_as(parameter)


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
