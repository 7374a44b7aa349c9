"""A class for what a stage knows of its place; global ranks, looked up in the group."""

import torch
import torch.distributed as dist
from torch import nn


class Place:
    def __init__(self, group):
        group = group or dist.group.WORLD
        ranks, own = dist.get_process_group_ranks(group), dist.get_rank(group)
        self.group = group
        self.before = ranks[own - 1] if own else None
        self.after = ranks[own + 1] if own + 1 < len(ranks) else None


def own_layers(layers, sizes, rank):
    owners = [owner for owner, size in enumerate(sizes) for _ in range(size)]
    return nn.Sequential(*(layer for layer, owner in zip(layers, owners, strict=True) if owner == rank))


def stage_forward(stage, inputs, group=None):
    place = Place(group)
    if place.before is not None:
        dist.recv(inputs, place.before, place.group)
        inputs.requires_grad_()
    outputs = stage(inputs)
    if place.after is not None:
        dist.send(outputs.detach().clone(memory_format=torch.contiguous_format), place.after, place.group)
    return outputs


def stage_backward(inputs, outputs, loss, group=None):
    place = Place(group)
    if place.after is None:
        loss.backward()
    else:
        gradient = torch.empty(outputs.shape, dtype=outputs.dtype)
        dist.recv(gradient, place.after, place.group)
        outputs.backward(gradient)
    if place.before is not None:
        dist.send(inputs.grad, place.before, place.group)
