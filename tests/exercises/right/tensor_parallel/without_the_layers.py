"""An MLP in one piece, setup_context instead of ctx in forward, a bias for rank 0 alone that autograd knows of."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F


def column_part(weight, bias, rank, world):
    rows = torch.arange(len(bias)).tensor_split(world)[rank]
    return weight[rows], bias[rows]


def row_part(weight, bias, rank, world):
    return weight.index_select(1, torch.arange(weight.shape[1]).tensor_split(world)[rank]), bias


class CopyIn(torch.autograd.Function):
    @staticmethod
    def forward(x, group):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, ctx.group = inputs

    @staticmethod
    def backward(ctx, gradient):
        total = torch.empty(gradient.shape, dtype=gradient.dtype).copy_(gradient)
        dist.all_reduce(total, group=ctx.group)
        return total, None


class SumOut(torch.autograd.Function):
    @staticmethod
    def forward(x, group):
        total = torch.empty(x.shape, dtype=x.dtype).copy_(x)
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


def copy_in(x, group=None):
    return CopyIn.apply(x, group)


def sum_out(x, group=None):
    return SumOut.apply(x, group)


def column_linear(x, weight, bias, group=None):
    return nn.functional.linear(copy_in(x, group), weight) + bias


def row_linear(x, weight, bias, group=None):
    summand = F.linear(x, weight)
    return torch.add(bias, sum_out(summand, group))


def parallel_mlp(x, up, down, group=None):
    hidden = F.gelu(F.linear(copy_in(x, group), *up))
    return sum_out(F.linear(hidden, down[0]), group) + down[1]
