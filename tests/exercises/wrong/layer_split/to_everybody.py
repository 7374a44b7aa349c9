"""Broadcasts its outputs."""
# message: rank 0 sent to rank 2; stage 0 of 3 in the forward pass does not

import torch
import torch.distributed as dist
from torch import nn


def own_layers(layers, sizes, rank):
    first = sum(sizes[:rank])
    return nn.Sequential(*layers[first : first + sizes[rank]])


def stage_forward(stage, inputs, group=None):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    if rank > 0:
        dist.recv(inputs, group=group, group_src=rank - 1)
        inputs.requires_grad_()
    outputs = stage(inputs)
    for other in range(rank + 1, world):
        dist.isend(outputs.detach().contiguous(), group=group, group_dst=other)
    return outputs


def stage_backward(inputs, outputs, loss, group=None):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    if rank == world - 1:
        loss.backward()
    else:
        gradient = torch.empty_like(outputs, memory_format=torch.contiguous_format)
        dist.recv(gradient, group=group, group_src=rank + 1)
        outputs.backward(gradient)
    if rank > 0:
        dist.send(inputs.grad, group=group, group_dst=rank - 1)
