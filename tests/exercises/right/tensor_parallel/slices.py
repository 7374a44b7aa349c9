"""Slices of its own instead of tensor_split; one function for the sum; views and saved numbers in ctx."""

import torch
import torch.distributed as dist
from torch.nn import functional as F


def ours(count, rank, world):
    return slice(rank * (count // world) + min(rank, count % world), None), count // world + (rank < count % world)


def column_part(weight, bias, rank, world):
    start, size = ours(len(bias), rank, world)
    return weight[start][:size].clone(), bias[start][:size].clone()


def row_part(weight, bias, rank, world):
    start, size = ours(weight.shape[1], rank, world)
    return weight[:, start][:, :size].contiguous().clone(), bias.clone()


def total(x, group):
    x = x.contiguous().clone()
    work = dist.all_reduce(x, group=group, async_op=True)
    work.wait()
    return x


class CopyIn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return total(gradient, ctx.group), None


class SumOut(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        return total(x, group)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.clone(), None


def copy_in(x, group=None):
    return CopyIn.apply(x, group)


def sum_out(x, group=None):
    return SumOut.apply(x, group)


def column_linear(x, weight, bias, group=None):
    return copy_in(x, group) @ weight.T + bias


def row_linear(x, weight, bias, group=None):
    return sum_out(x @ weight.T, group).add(bias)


def parallel_mlp(x, up, down, group=None):
    return row_linear(F.gelu(column_linear(x, up[0], up[1], group)), down[0], down[1], group)
