"""Exercise: a model cut layer by layer.

The model is a list of layers. Each rank keeps a few of them, its stage, and no rank has them all. A batch goes through
the stages one after the other, and its gradient comes back the same way:

                forward                               backward
    stage 0     its outputs to stage 1                (nothing)
    stage 1     its outputs to stage 2                the gradient of its inputs to stage 0
    stage 2     (nothing)                             the gradient of its inputs to stage 1

Nothing else travels: no parameter, no gradient of a parameter, no sample, no loss. Three functions, each checked on its
own, so begin with any. A training step on a rank is then

    stage = own_layers(layers, sizes, rank)                       # once
    inputs = x if rank == 0 else torch.empty(...)                 # of the shape that will come
    outputs = stage_forward(stage, inputs)
    loss = mse_loss(outputs, y) if rank == world - 1 else None
    stage_backward(inputs, outputs, loss)

    group               the ranks that take part, numbered from 0 within the group; None is all ranks
    rank, world         dist.get_rank(group), dist.get_world_size(group); rank s holds stage s
    sending             dist.send(x, group=group, group_dst=other) returns when the other side receives
    receiving           dist.recv(y, group=group, group_src=other) fills y, and returns then

Both refuse a tensor that is not contiguous, such as a transposed one; x.contiguous() is x, or a copy of it that is.

Try it in a notebook with check("layer_split"), or in a terminal with: dtcourse check layer_split
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn


def own_layers(layers: Sequence[nn.Module], sizes: Sequence[int], rank: int) -> nn.Sequential:
    """The layers of the stage of `rank`, in their order: the layers themselves, as one nn.Sequential.

    Stage 0 takes the first sizes[0] layers, stage 1 the next sizes[1] of them, and so on. The sizes add up to the
    number of layers, and none is 0.

        sizes         rank 0       rank 1     rank 2
        [3, 2]        0 1 2        3 4
        [1, 3, 1]     0            1 2 3      4

    Hint: how many layers do the ranks before this one take?
    """
    raise NotImplementedError("not written yet: own_layers")


def stage_forward(stage: nn.Module, inputs: torch.Tensor, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """The forward pass of this rank's stage. Returns its outputs, as `stage` returned them.

    inputs      on the first stage the samples; on each other stage a tensor of the right shape and dtype, with nothing
                in it yet: receive into it what the stage before sends

    A stage knows nothing of the stages before it, and autograd ends here: to autograd the inputs are numbers like any
    others. So on all stages but the first they have to ask for their gradient, which stage_backward sends on:
    inputs.requires_grad_(). Its outputs go to the next stage, if there is one.

    Hint: the first and the last stage do less than the others. With one rank, what is left?
    """
    raise NotImplementedError("not written yet: stage_forward")


def stage_backward(
    inputs: torch.Tensor, outputs: torch.Tensor, loss: torch.Tensor | None, group: dist.ProcessGroup | None = None
) -> None:
    """The backward pass of this rank's stage: adds to the gradients of its parameters. Returns None.

    inputs, outputs     those of stage_forward, of the same batch. Keep nothing elsewhere: other batches may have come
                        through in between
    loss                on the last stage the loss, a scalar made from its outputs; None on the others

    The last stage begins with loss.backward(). To each other one the stage behind it sends the gradient of the loss by
    this stage's outputs, a tensor of their shape; outputs.backward(gradient) takes it on through the own layers, down
    to the parameters and to inputs.grad. That one goes to the stage before, if there is one: its outputs are these
    inputs. The samples need no gradient.

    Hint: outputs.backward() adds to .grad of all that asks for it; nothing has to be added up by hand.
    """
    raise NotImplementedError("not written yet: stage_backward")
