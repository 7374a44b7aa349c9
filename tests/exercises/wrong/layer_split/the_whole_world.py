"""Does not hand the group on."""
# message: waits in recv (.*\n)*.*the_whole_world.py, line \d+, in stage_forward(.*\n)*Only ranks 1, 2, 4 call it

import torch
import torch.distributed as dist
from torch import nn


def own_layers(layers, sizes, rank):
    first = sum(sizes[:rank])
    return nn.Sequential(*layers[first : first + sizes[rank]])


def stage_forward(stage, inputs, group=None):
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank > 0:
        dist.recv(inputs, src=rank - 1)
        inputs.requires_grad_()
    outputs = stage(inputs)
    if rank < world - 1:
        dist.send(outputs.detach().contiguous(), dst=rank + 1)
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
