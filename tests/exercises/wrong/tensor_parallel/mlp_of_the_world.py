"""Does not hand the group on."""
# message: rank \d waits in all_reduce (.*\n)*.*mlp_of_the_world.py, line \d+, in forward(.*\n)*Only ranks 1, 2, 4

import torch
import torch.distributed as dist
from torch.nn import functional as F


def column_part(weight, bias, rank, world):
    return weight.tensor_split(world)[rank].clone(), bias.tensor_split(world)[rank].clone()


def row_part(weight, bias, rank, world):
    return weight.tensor_split(world, dim=1)[rank].clone(), bias


class CopyIn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x

    @staticmethod
    def backward(ctx, gradient):
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=ctx.group)
        return total, None


class SumOut(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


def copy_in(x, group=None):
    return CopyIn.apply(x, group)


def sum_out(x, group=None):
    return SumOut.apply(x, group)


def column_linear(x, weight, bias, group=None):
    return F.linear(copy_in(x, group), weight, bias)


def row_linear(x, weight, bias, group=None):
    return sum_out(F.linear(x, weight), group) + bias


def parallel_mlp(x, up, down, group=None):
    hidden = F.gelu(column_linear(x, *up))
    return row_linear(hidden, *down)
