"""Exercise: sharded data parallelism, ZeRO 1 to 3.

In data parallelism each rank keeps all parameters, all gradients and all of the optimizer's state: N times the same.
ZeRO keeps of some of them only a part on each rank, its own:

                parameters      gradients       state of the optimizer
    plain       all             all             all
    ZeRO 1      all             all             own part
    ZeRO 2      all             own part        own part
    ZeRO 3      own part        own part        own part

Why that is enough: an optimizer takes each element for itself. Who has the gradient and the state of an element can
take its step; nobody else has to. And the two halves of an all-reduce do the rest:

    reduce_scatter(x, group)    adds up the ranks' x, in place: afterwards each rank's own part of x is complete, and
                                the rest of x is of no use to it
    all_gather(x, group)        each rank begins with its own part of x: afterwards everybody has all of x, in place

Both are given to your functions, and you may leave all sending to them. All tensors here are flat and contiguous: a
model is a list of layers, and the parameters of a layer are one tensor of one dimension, as its gradients are.

    group               the ranks that take part; None is all ranks
    rank, world         dist.get_rank(group), dist.get_world_size(group)

Each piece is checked on its own, in this order; what a later one needs of an earlier one it calls in your file.

Try it in a notebook with check("sharded"), or in a terminal with: dtcourse check sharded
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

Collective = Callable[..., None]  # reduce_scatter or all_gather


def own_part(length: int, rank: int, world: int) -> slice:
    """Which elements of a tensor of `length` elements are the own part of `rank`, as a slice.

    The tensor is cut into `world` chunks, as tensor_split cuts: they lie one after the other, and the first
    (length mod world) of them have one element more. Rank j owns chunk j+1, modulo world: that is the one which the
    reduce-scatter of a ring leaves with it.

        5 elements, world = 3       chunk 0     chunk 1     chunk 2
        elements                    0 1         2 3         4
        own part of                 rank 2      rank 0      rank 1

    With fewer elements than ranks some parts are empty.
    """
    raise NotImplementedError("not written yet: own_part")


def average_own(
    gradient: torch.Tensor, share: float, reduce_scatter: Collective, group: dist.ProcessGroup | None = None
) -> torch.Tensor:
    """The average of the ranks' gradients, of the own part alone.

    gradient    of this rank's loss, the mean over its samples; a tensor that you may overwrite
    share       how many of all samples this rank had: with 3 of 4 it is 0.75. The shares of all ranks add up to 1

    Two ranks with 3 and 1 samples and the gradients g[0] and g[1]: on each rank, its own part of 3/4 g[0] + 1/4 g[1].

    What you return is kept, so it has to have memory of its own: a slice is a view, which keeps all of the tensor.
    """
    raise NotImplementedError("not written yet: average_own")


def zero_1_step(
    parameters: torch.Tensor,
    gradient: torch.Tensor,
    share: float,
    update: Callable[[torch.Tensor, torch.Tensor], None],
    reduce_scatter: Collective,
    all_gather: Collective,
    group: dist.ProcessGroup | None = None,
) -> None:
    """One step of training with the state of the optimizer sharded (ZeRO 1). Changes `parameters`, in place.

    parameters      all of them, the same on all ranks before the step, and after it
    gradient        all of it, of this rank's loss, as in average_own
    update          update(weights, gradient) is the optimizer: it takes its step in place, in the tensor `weights`,
                    and keeps a state for as many elements as it is given

    Each rank takes the step for its own part, and then all get the new parameters from each other. Count what is sent:
    a reduce-scatter and an all-gather are what an all-reduce of the gradients would be, so all this costs nothing.
    """
    raise NotImplementedError("not written yet: zero_1_step")


def zero_2_gradients(
    layers: int,
    backward: Callable[[int], torch.Tensor],
    share: float,
    reduce_scatter: Collective,
    group: dist.ProcessGroup | None = None,
) -> list[torch.Tensor]:
    """The backward pass with the gradients sharded, too (ZeRO 2).

    backward        backward(i) goes back through layer i, the one after it first, and returns its whole gradient

    Returns for each layer, in the order of the layers, the own part of the average of the ranks' gradients. Whole
    gradients are to be gone as soon as they have been averaged: no other one is in memory when backward(i) is called.

    Hint: a tensor is freed when no name and no list has it any more. A loop's variable has it until it gets another
    value, and that is after the call.
    """
    raise NotImplementedError("not written yet: zero_2_gradients")


def gather(
    own: torch.Tensor, length: int, all_gather: Collective, group: dist.ProcessGroup | None = None
) -> torch.Tensor:
    """A whole tensor of `length` elements, new, from the own parts of all ranks. `own` stays as it is."""
    raise NotImplementedError("not written yet: gather")


def zero_3_gradients(
    parts: Sequence[torch.Tensor],
    lengths: Sequence[int],
    forward: Callable[[int, torch.Tensor], None],
    backward: Callable[[int, torch.Tensor], torch.Tensor],
    share: float,
    reduce_scatter: Collective,
    all_gather: Collective,
    group: dist.ProcessGroup | None = None,
) -> list[torch.Tensor]:
    """Forward and backward pass with everything sharded, the parameters, too (ZeRO 3).

    parts, lengths  for each layer, this rank's own part of its parameters, and how many elements the whole has
    forward         forward(i, parameters) takes what layer i-1 has made through layer i, with its whole parameters
    backward        backward(i, parameters) goes back through layer i, the one after it first, and returns its whole
                    gradient

    Returns what zero_2_gradients does. The whole parameters of a layer are there only while it computes: gathered
    before, gone afterwards, in each pass anew. When forward or backward is called, those of no other layer are in
    memory, and no whole gradient is. (Those of the last layer could stay for its backward. Let them go all the same.)

    So each layer is gathered twice, and its gradient reduced and scattered once: half as much again is sent as in an
    all-reduce. That is the price of parameters that no rank has to keep.
    """
    raise NotImplementedError("not written yet: zero_3_gradients")


def memory(stage: int, length: int, rank: int, world: int, parameter: int, gradient: int, state: int) -> int:
    """How many bytes `rank` keeps from one step to the next, of a tensor of `length` elements.

    stage                           0 (plain data parallelism), 1, 2 or 3 (ZeRO)
    parameter, gradient, state      bytes for each element: with Adam in mixed precision 2, 2 and 12

    What is there for a moment only (a whole layer that is gathered, a whole gradient that is not averaged yet) does
    not count. Parts may be uneven: the ranks then keep different numbers of bytes.
    """
    raise NotImplementedError("not written yet: memory")
