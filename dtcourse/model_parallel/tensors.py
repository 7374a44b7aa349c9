"""Tensor parallelism: each rank holds a part of every weight, and all work at the same time on the same samples.

    block = parallel_block(Block(features, heads))    # in place; build the whole one alike on all ranks

Y = W2 f(W1 x): cut W1 by its outputs (column-parallel) and each rank gets its own hidden features, to which f applies
as it does to all; cut W2 by its inputs (row-parallel) and each rank has a summand of Y. One sum over the ranks, and Y
is whole everywhere. Attention is cut in the same way, by heads. Where whole and parted meet stand two functions:

               forward       backward
    copy_in    (nothing)     all-reduce      before a column-parallel layer: each rank has a summand of dx, too
    sum_out    all-reduce    (nothing)       after a row-parallel one

Cost: 2 all-reduces forward and 2 backward a transformer layer (one each way for attention and for the MLP), each of
batch x time x features values, and none of them can hide behind computation: the next layer needs the sum. What is not
cut (normalisations, the bias after a sum) is on all ranks and gets the same gradient everywhere, without a message.

Megatron-LM writes x W, with the weight's columns as outputs: hence the names. nn.Linear keeps outputs as rows.

Source: Shoeybi et al., "Megatron-LM" (2019), section 3, where copy_in is f and sum_out is g.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from dtcourse.model_parallel.transformer import MLP, Attention, Block

Group = dist.ProcessGroup | None


def copy_in(x: torch.Tensor, group: Group = None) -> torch.Tensor:
    """`x`, the same on all ranks, for parts of a layer: its gradient is the sum of what the parts give."""
    return _CopyIn.apply(x, group)


def sum_out(x: torch.Tensor, group: Group = None) -> torch.Tensor:
    """The sum of `x` over the ranks: each summand's gradient is the sum's."""
    return _SumOut.apply(x, group)


class _CopyIn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group) -> torch.Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _summed(gradient, ctx.group), None


class _SumOut(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group) -> torch.Tensor:
        return _summed(x, group)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None


def _summed(x: torch.Tensor, group: Group) -> torch.Tensor:
    total = x.clone(memory_format=torch.contiguous_format)  # all_reduce works in place, and x is not ours
    dist.all_reduce(total, group=group)
    return total


def share(features: int, unit: int = 1, group: Group = None) -> slice:
    """Which of the features are this rank's, in whole units; the first ranks get one more where it does not divide.

    Raises ValueError if features is not a number of whole units, or if a rank would get none.
    """
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    units, rest = divmod(features, unit)
    if rest or units < world:
        raise ValueError(
            f"{features} in units of {unit} cannot be shared by {world} ranks: each needs at least one whole unit. "
            "Take fewer ranks, or a larger layer (more heads, more features)"
        )
    each, more = divmod(units, world)
    first = rank * each + min(rank, more)
    return slice(first * unit, (first + each + (rank < more)) * unit)


class ColumnParallelLinear(nn.Module):
    """This rank's output features of `whole`, in units of `unit`: (..., inputs) to (..., its share of the outputs)."""

    def __init__(self, whole: nn.Linear, unit: int = 1, group: Group = None) -> None:
        super().__init__()
        self.group, ours = group, share(whole.out_features, unit, group)
        self.weight = _part(whole.weight[ours])
        self.bias = None if whole.bias is None else _part(whole.bias[ours])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(copy_in(x, self.group), self.weight, self.bias)


class RowParallelLinear(nn.Module):
    """This rank's input features of `whole`, in units of `unit`: (..., its share of the inputs) to (..., outputs)."""

    def __init__(self, whole: nn.Linear, unit: int = 1, group: Group = None) -> None:
        super().__init__()
        self.group, ours = group, share(whole.in_features, unit, group)
        self.weight = _part(whole.weight[:, ours])
        self.bias = None if whole.bias is None else _part(whole.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs = sum_out(F.linear(x, self.weight), self.group)
        return outputs if self.bias is None else outputs + self.bias  # after the sum, or it would count N times


def _part(weight: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(weight.detach().clone(memory_format=torch.contiguous_format))  # the whole one can go


def parallel_mlp(mlp: MLP, group: Group = None) -> MLP:
    """Cut the hidden features, in place. Raises ValueError if they are fewer than the ranks."""
    mlp.up, mlp.down = ColumnParallelLinear(mlp.up, group=group), RowParallelLinear(mlp.down, group=group)
    return mlp


def parallel_attention(attention: Attention, group: Group = None) -> Attention:
    """Cut the heads, in place. Raises ValueError if they are fewer than the ranks."""
    head = attention.head_features
    attention.qkv = ColumnParallelLinear(attention.qkv, unit=3 * head, group=group)
    attention.out = RowParallelLinear(attention.out, unit=head, group=group)
    return attention


def parallel_block(block: Block, group: Group = None) -> Block:
    """Cut attention and MLP of a transformer layer, in place. Raises ValueError as they do."""
    parallel_attention(block.attention, group)
    parallel_mlp(block.mlp, group)
    return block
