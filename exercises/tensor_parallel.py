"""Exercise: an MLP cut inside its layers.

    Y = W2 gelu(W1 X + b1) + b2

Here all ranks work at the same time, on the same samples X, and each holds a part of W1 and of W2. Cut W1 by its
outputs: each rank computes some of the hidden features, and gelu takes each for itself, so nobody needs those of the
others. Cut W2 by its inputs, in the same way: what it needs is there already, and each rank gets a summand of Y.

                    cut by its      each rank has                       name
    up (W1, b1)     outputs         some of the hidden features         column-parallel
    down (W2, b2)   inputs          a summand of the outputs            row-parallel

nn.Linear keeps its weight as (outputs, inputs): an output is a row there. The names come from papers that write X W.

So one sum over the ranks, and Y is whole everywhere. Autograd has to know of it; that is what two functions are for:

                    forward         backward
    CopyIn          (nothing)       all-reduce      at the entrance, where X is the same on all ranks
    SumOut          all-reduce      (nothing)       at the exit, where each rank has a summand

Why does CopyIn have to add up? X goes into the features of all ranks, and each rank knows only its own share of the
gradient of X. Why does SumOut not? Y = y[0] + y[1] + ..., so the gradient of each summand is the gradient of Y, and
that is the same on all ranks already.

    group               the ranks that take part; None is all ranks
    rank, world         dist.get_rank(group), dist.get_world_size(group)
    adding up           dist.all_reduce(x, group=group) leaves the sum of everybody's x with everybody, in place; on
                        gloo and NCCL x has to be contiguous

Each piece is checked on its own, in this order.

Try it in a notebook with check("tensor_parallel"), or in a terminal with: dtcourse check tensor_parallel
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional as F

Part = tuple[torch.Tensor, torch.Tensor]  # weight and bias


def column_part(weight: torch.Tensor, bias: torch.Tensor, rank: int, world: int) -> Part:
    """The part of a linear layer that `rank` of `world` ranks holds if it is cut by its outputs.

    weight, bias    of the whole layer: (outputs, inputs) and (outputs,)

    Returns weight and bias of its own outputs. They lie one after the other, in the order of the ranks; the first
    (outputs mod world) ranks have one more than the others. That is how tensor.tensor_split(world) cuts.

        5 outputs, world = 2        rank 0      rank 1
        outputs                     0 1 2       3 4

    A slice is a view, which keeps all of the whole weight in memory. The rest is to be freed: return copies (clone).
    """
    raise NotImplementedError("not written yet: column_part")


def row_part(weight: torch.Tensor, bias: torch.Tensor, rank: int, world: int) -> Part:
    """The part of a linear layer that `rank` of `world` ranks holds if it is cut by its inputs.

    Returns the weight of its own inputs, which are dealt out as above, a copy again; and the bias, which belongs to all
    outputs: it is whole, the same on each rank.
    """
    raise NotImplementedError("not written yet: row_part")


class CopyIn(torch.autograd.Function):
    """x as it is; in the backward pass its gradient is added up over the ranks.

    Neither x nor the gradient that comes in is ours to change: an all-reduce, which works in place, needs a copy.
    It has to be contiguous; clone() keeps the strides, clone(memory_format=torch.contiguous_format) does not.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
        """Returns x. What backward needs is kept in ctx: ctx.group = group."""
        raise NotImplementedError("not written yet: CopyIn")

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        """From the gradient of what forward returned to those of x and of group; the latter has none: None."""
        raise NotImplementedError("not written yet: CopyIn")


class SumOut(torch.autograd.Function):
    """The sum of x over the ranks; in the backward pass the gradient as it is."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
        """Returns the sum, a new tensor: x stays as it is."""
        raise NotImplementedError("not written yet: SumOut")

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        """From the gradient of the sum to those of x and of group."""
        raise NotImplementedError("not written yet: SumOut")


def copy_in(x: torch.Tensor, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """How a Function is called. Nothing to write here."""
    return CopyIn.apply(x, group)


def sum_out(x: torch.Tensor, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """Nothing to write here."""
    return SumOut.apply(x, group)


def column_linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, group: dist.ProcessGroup | None = None
) -> torch.Tensor:
    """A column-parallel layer: from x, the same on all ranks, (..., inputs), to this rank's outputs.

    weight, bias    this rank's part, from column_part

    x gets its whole gradient in the backward pass. Hint: F.linear(x, weight, bias), and one of the two functions above.
    """
    raise NotImplementedError("not written yet: column_linear")


def row_linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, group: dist.ProcessGroup | None = None
) -> torch.Tensor:
    """A row-parallel layer: from this rank's inputs to all outputs, (..., outputs), the same on all ranks.

    weight, bias    this rank's part, from row_part

    The bias counts once, however many ranks there are; and its gradient is the whole one, on each rank, so that its
    copies stay the same. Hint: F.linear(x, weight) has no bias in it.
    """
    raise NotImplementedError("not written yet: row_linear")


def parallel_mlp(x: torch.Tensor, up: Part, down: Part, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """The MLP of the first line of this file, from x, the same on all ranks, to outputs that are so too.

    up, down    this rank's parts, from column_part and row_part. Its activation is F.gelu

    One all-reduce forward and one backward, of as many elements as x has: no more, whatever lies between the two.
    """
    raise NotImplementedError("not written yet: parallel_mlp")
