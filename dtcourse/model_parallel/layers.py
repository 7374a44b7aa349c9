"""A model cut layer by layer: each rank holds one stage, and hands its outputs to the next rank.

    layers = [nn.Linear(64, 100), nn.Tanh(), nn.Linear(100, 10)]      # the same on all ranks
    stage = Stage(own_layers(layers, [2, 1]))                         # of which rank 0 keeps two, rank 1 the last
    for x, y in batches:
        outputs = stage.forward(x)                                    # x counts on the first stage alone
        stage.backward(cross_entropy(outputs, y) if stage.is_last else None)
        optimizer.step()                                              # over stage.layers.parameters()

The naive way: the batch passes through the stages as a whole, so one rank works and the others wait. F = forward,
B = backward, over time:

    stage 0   F . . . . . . B
    stage 1   . F . . . . B .
    stage 2   . . F . . B . .
    stage 3   . . . F B . . .

Cost: with P stages of equal cost each rank idles (P-1)/P of the time; the model does not get faster, it only fits.
Bytes a step and boundary: the activation of the batch forward, and as much gradient back; no parameter ever travels.

Source: the oldest cut there is; as stages with sends and receives in Huang et al., "GPipe" (2019), figure 2 (b).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn

from dtcourse.events import region
from dtcourse.model_parallel.activations import receive, receive_activation, send, send_activation


def own_layers(
    layers: Sequence[nn.Module], sizes: Sequence[int], group: dist.ProcessGroup | None = None
) -> nn.Sequential:
    """The layers of this rank's stage, in order, if stage s takes the next `sizes[s]` of them.

    Raises ValueError if there are not as many sizes as ranks, if a stage is empty, or if the sizes do not add up.
    """
    world = dist.get_world_size(group)
    if len(sizes) != world:
        raise ValueError(
            f"sizes={list(sizes)} cuts into {len(sizes)} stages, and there are {world} ranks, one for each"
        )
    if min(sizes) < 1 or sum(sizes) != len(layers):
        raise ValueError(
            f"sizes={list(sizes)} gives away {sum(sizes)} layers, and there are {len(layers)}: "
            "each stage takes 1 or more, and together they take all"
        )
    rank = dist.get_rank(group)
    first = sum(sizes[:rank])
    return nn.Sequential(*layers[first : first + sizes[rank]])


class Stage:
    """The stage of this rank: the first one gets the samples, each of the others what the stage before it returns.

    layers    take one tensor and return one floating-point tensor, of any shape
    is_first, is_last

    What the layers raise gets a note with the stage and what it was given.
    """

    def __init__(self, layers: nn.Module, group: dist.ProcessGroup | None = None) -> None:
        self.layers, self.group = layers, group
        self.number, self.stages = dist.get_rank(group), dist.get_world_size(group)
        self.is_first, self.is_last = self.number == 0, self.number == self.stages - 1
        self._name = f"stage {self.number} of {self.stages} (rank {dist.get_rank()})"
        self._inputs: torch.Tensor | None = None
        self._outputs: torch.Tensor | None = None

    def forward(self, samples: torch.Tensor | None = None) -> torch.Tensor | None:
        """The outputs of the model on the last stage, None on the others. `samples` counts on the first one alone.

        Raises ValueError if the first stage gets none, TypeError if the layers return no floating-point tensor.
        """
        if not self.is_first:
            samples = receive_activation(self.number - 1, self.group)
        elif samples is None:
            raise ValueError(f"{self._name} is the first and needs the samples: forward(x)")
        with self._noted("forward", samples):
            with region("forward", stage=self.number):
                outputs = self.layers(samples)
            if not self.is_last:
                send_activation(outputs, self.number + 1, self.group)
        self._inputs, self._outputs = samples, outputs
        return outputs if self.is_last else None

    def backward(self, loss: torch.Tensor | None = None) -> None:
        """Add the gradients of `loss`, a scalar that the last stage computes from the outputs, to the parameters.

        Raises RuntimeError without a forward pass before it, ValueError if the last stage has no loss or another does.
        """
        inputs, outputs = self._inputs, self._outputs
        self._check_backward(loss)
        self._inputs = self._outputs = None  # the activations are free once their gradients are there
        if not self.is_last:
            if not outputs.requires_grad:  # nothing to train up to here, which the next stage knows from the header
                return
            gradient = torch.empty_like(outputs, memory_format=torch.contiguous_format)
            receive(gradient, self.number + 1, self.group)
        with self._noted("backward", inputs), region("backward", stage=self.number):
            torch.autograd.backward(loss if self.is_last else outputs, None if self.is_last else gradient)
        if not self.is_first and inputs.requires_grad:
            send(torch.zeros_like(inputs) if inputs.grad is None else inputs.grad, self.number - 1, self.group)

    def _check_backward(self, loss: torch.Tensor | None) -> None:
        if self._outputs is None:
            raise RuntimeError(f"{self._name} has no activations to go back from: each backward() follows a forward()")
        if self.is_last and loss is None:
            raise ValueError(
                f"{self._name} is the last: backward(loss), with a loss computed from what forward() returned"
            )
        if not self.is_last and loss is not None:
            raise ValueError(
                f"{self._name} has no outputs of the model, so no loss: backward(None); only the last has one"
            )

    @contextmanager
    def _noted(self, direction: str, inputs: torch.Tensor) -> Iterator[None]:
        try:
            yield
        except Exception as problem:
            dtype, source = str(inputs.dtype).removeprefix("torch."), f"stage {self.number - 1}"
            problem.add_note(
                f"In the {direction} pass of {self._name}, whose inputs were {dtype} {tuple(inputs.shape)} "
                f"from {'the samples' if self.is_first else source}."
            )
            raise
