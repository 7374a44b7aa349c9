"""Exercise: one step of a pipeline, as one stage sees it.

Stage s of P lives on rank s. A batch is cut into M micro-batches, and a rank goes through a list of actions, its part
of a schedule (1F1B, say):

    ("F", m)    the forward of micro-batch m; its outputs go to the stage after
    ("B", m)    the backward of micro-batch m; the gradient of its inputs goes to the stage before

Several micro-batches are under way at once, so a stage keeps for each of them what its backward will need. In the end
the gradients have to be those of the whole batch, as if one process had computed them.

Who receives when? Stage 0 sends outputs forward while stage 1 sends a gradient back. If each sends first and receives
after that, each waits for the other to receive, for ever. So there is one exchange between two actions: out goes what
the last action has made, in comes what the next one needs, both at the same time. 1F1B with P = 2 and M = 3, > for what
is sent and < for what is received (a activation, g gradient), on each rank one exchange between two actions:

    rank 0   F0  >a0      F1  >a1 <g0  B0      F2  >a2 <g1  B1  <g2  B2
    rank 1   <a0  F0  B0      >g0 <a1  F1  B1      >g1 <a2  F2  B2  >g2

(Where there is nothing to be sent and nothing needed from elsewhere, nothing is exchanged.)

Four functions, the first three for themselves, and then the step that uses them. `exchange` is given.

Try it in a notebook with check("pipeline_stage"), or in a terminal with: dtcourse check pipeline_stage
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import nn

Kept = dict[int, tuple[torch.Tensor, torch.Tensor]]  # micro-batch -> its inputs, its outputs
Loss = Callable[[torch.Tensor, int], torch.Tensor]


def shares(sizes: Sequence[int]) -> list[float]:
    """The share of each micro-batch in the batch, by its number of samples. They add up to 1.

        sizes [3, 3, 2]     shares [0.375, 0.375, 0.25]

    A loss is a mean over samples. The mean of the batch is the sum of the micro-batches' means, each times its share;
    the plain average of the means would be wrong as soon as one micro-batch is smaller.
    """
    raise NotImplementedError("not written yet: shares")


def forward(
    stage: nn.Module, m: int, inputs: torch.Tensor, kept: Kept, loss: Loss | None, share: float
) -> torch.Tensor:
    """The forward of micro-batch m. Returns its outputs, cut off from the graph: outputs.detach().

    inputs      they ask for their gradient already (requires_grad) if there is a stage before that waits for it
    kept        leave in kept[m] the pair (inputs, outputs), with the graph between them, for the backward; the other
                micro-batches' pairs stay as they are
    loss        None on all stages but the last. There the outputs are not what `stage` returns, but a number: the loss
                of that, loss(stage(inputs), m), times the share
    share       of this micro-batch in the batch

    Why cut off? Whoever holds a tensor of the graph holds the graph, and with it all activations of this micro-batch.
    """
    raise NotImplementedError("not written yet: forward")


def backward(m: int, gradient: torch.Tensor | None, kept: Kept) -> torch.Tensor | None:
    """The backward of micro-batch m: adds to the gradients of the parameters, and returns that of the inputs.

    gradient    of the loss by the outputs of micro-batch m; None on the last stage, whose outputs are the loss
    kept        in kept[m] there are its inputs and outputs. Take them out: what nobody holds any more is freed at once,
                and that is what 1F1B is for. Those of the other micro-batches stay

    Returns inputs.grad, which is None on the first stage. Hint: outputs.backward(gradient) adds to .grad of all that
    asks for it; nothing has to be added up by hand.
    """
    raise NotImplementedError("not written yet: backward")


def exchange(sent: torch.Tensor | None, to: int | None, received: torch.Tensor | None, source: int | None) -> None:
    """Send and receive at the same time, and return when both are done. Nothing to write here.

    sent, to            what goes to which rank; to=None: nothing is sent
    received, source    the tensor that is filled, and with what from which rank; source=None: nothing is received
    """
    operations = []
    if to is not None:
        operations.append(dist.P2POp(dist.isend, sent.contiguous(), to))
    if source is not None:
        operations.append(dist.P2POp(dist.irecv, received, source))
    for work in dist.batch_isend_irecv(operations) if operations else ():
        work.wait()


def step(
    stage: nn.Module,
    actions: Sequence[tuple[str, int]],
    inputs: Callable[[int], torch.Tensor],
    sizes: Sequence[int],
    loss: Loss | None,
) -> None:
    """One batch on this rank: all its actions, one after the other, and between two of them one exchange.

    actions     of this rank, as above: those of 1F1B or of GPipe, also with fewer micro-batches than stages
    inputs      inputs(m) is on the first stage micro-batch m; on each other stage a new tensor of the right shape, with
                nothing in it yet, to receive into. Ask for it when it is needed: what has not been asked for needs no
                memory. After it is filled it has to ask for its gradient: x.requires_grad_()
    sizes       how many samples each micro-batch has
    loss        as in forward: None on all stages but the last

    Adds to the gradients of the stage's parameters, which may have something in them already: whoever calls it zeroes
    them. Leaves nothing behind but these.

    Hint: the gradient that stage s receives has the shape of its outputs of this micro-batch, and those are in `kept`:
    torch.empty_like(...). Before the first action there is nothing to send, after the last one nothing to receive. The
    first stage has no stage before, the last one none after: None, for `exchange`.
    """
    raise NotImplementedError("not written yet: step")
