"""CopyIn as a hook on the gradient, SumOut as a sum that is added to x without autograd."""

import torch
import torch.distributed as dist
from torch.nn import functional as F


def column_part(weight, bias, rank, world):
    return weight.tensor_split(world)[rank].clone(), bias.tensor_split(world)[rank].clone()


def row_part(weight, bias, rank, world):
    return weight.T.tensor_split(world)[rank].T.clone(), bias


def total(x, group):
    x = x.detach().clone(memory_format=torch.contiguous_format)
    dist.all_reduce(x, group=group)
    return x


def copy_in(x, group=None):
    copy = x.view_as(x)
    if copy.requires_grad:
        copy.register_hook(lambda gradient: total(gradient, group))
    return copy


def sum_out(x, group=None):
    return x + (total(x, group) - x.detach())


def column_linear(x, weight, bias, group=None):
    return F.linear(copy_in(x, group), weight, bias)


def row_linear(x, weight, bias, group=None):
    return sum_out(F.linear(x, weight), group) + bias


def parallel_mlp(x, up, down, group=None):
    return row_linear(F.gelu(column_linear(x, *up, group)), *down, group)
