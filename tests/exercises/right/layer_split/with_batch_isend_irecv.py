"""Every message as a batch of one, as NCCL likes it; own_layers counts from behind."""

import torch
import torch.distributed as dist
from torch import nn


def own_layers(layers, sizes, rank):
    stop = len(layers) - sum(sizes[rank + 1 :])
    return nn.Sequential(*[layers[k] for k in range(stop - sizes[rank], stop)])


def exchange(operation, tensor, group, peer):
    for work in dist.batch_isend_irecv([dist.P2POp(operation, tensor, group=group, group_peer=peer)]):
        work.wait()


def stage_forward(stage, inputs, group=None):
    rank = dist.get_rank(group)
    if rank:
        exchange(dist.irecv, inputs, group, rank - 1)
        inputs.requires_grad = True
    outputs = stage(inputs)
    if rank + 1 < dist.get_world_size(group):
        exchange(dist.isend, outputs.contiguous(), group, rank + 1)
    return outputs


def stage_backward(inputs, outputs, loss, group=None):
    rank = dist.get_rank(group)
    gradient = None
    if loss is None:
        gradient = outputs.new_empty(outputs.shape)
        exchange(dist.irecv, gradient, group, rank + 1)
    torch.autograd.backward(outputs if loss is None else loss, gradient)
    if rank:
        exchange(dist.isend, inputs.grad.contiguous(), group, rank - 1)
