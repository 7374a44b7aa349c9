"""One stage: computes F, B, or I and W of a micro-batch. It knows autograd and no messages.

    forward       keeps its inputs and outputs, and the graph between them: the activation of this micro-batch
    backward      uses it up
    input half    uses up all but what the weight gradients need
    weight half   uses up the rest

So the activations alive at any time are those that the schedule asks for, and no more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.func import functional_call

from dtcourse.events import region

from .boundary import Description, described, in_words
from .microbatches import Batch

Loss = Callable[[Any, Any], torch.Tensor]  # loss(outputs of the last stage, targets)
Tensors = tuple[torch.Tensor, ...]


class Weights(Protocol):
    """Which weights a micro-batch meets on a stage of an asynchronous pipeline, and the update after each backward."""

    def call(self, microbatch: int, *inputs: torch.Tensor) -> Any:
        """The forward of the module, with the weights of this micro-batch."""

    def backward(self, microbatch: int) -> AbstractContextManager[None]:
        """Around the backward: its weights, and at the end the update."""

    def version(self, microbatch: int) -> int:
        """How many updates its weights have seen."""


class Kept(NamedTuple):
    """What a forward leaves for its backward."""

    inputs: Tensors
    outputs: Tensors  # those that a gradient goes back from


class Stage:
    """Stage `number` of `stages`. `loss` on the last one alone, `weights` in an asynchronous schedule.

    What the module or the loss raises gets a note: stage, micro-batch, what came in.
    """

    def __init__(
        self, module: nn.Module, number: int, stages: int, loss: Loss | None = None, weights: Weights | None = None
    ) -> None:
        self.module, self.number, self.loss, self._weights = module, number, loss, weights
        self.is_first, self.is_last = number == 0, number == stages - 1
        tensors = chain(module.parameters(), module.buffers())
        self.device = next((tensor.device for tensor in tensors), torch.get_default_device())
        self._name = f"stage {number} of {stages} (rank {dist.get_rank()})"
        self._kept: dict[int, Kept] = {}
        self._later: dict[int, tuple[Tensors, tuple, Tensors]] = {}  # input halves whose weight half is still to come

    def forward(self, microbatch: int, inputs: Tensors, expected: tuple[Description, ...]) -> Tensors:
        """The outputs, cut off from the graph. Raises ValueError if they are not as `expected`."""
        with self._at("forward", microbatch, inputs):
            outputs = as_tensors(self._call(microbatch, inputs))
            self._check(described(outputs), expected)
        return self._keep(microbatch, inputs, outputs)

    def forward_to_loss(self, microbatch: int, inputs: Tensors, targets: Batch, share: float) -> torch.Tensor:
        """On the last stage: the loss of a micro-batch, times its share in the batch."""
        with self._at("forward", microbatch, inputs):
            loss = self.loss(self._call(microbatch, inputs), targets)
            if not isinstance(loss, torch.Tensor) or loss.dim():
                seen = f"shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
                raise TypeError(f"the loss has to be a tensor of no dimension, the mean or the sum; got {seen}")
            if share != 1:
                loss = loss * share
        return self._keep(microbatch, inputs, (loss,))[0]

    def backward(self, microbatch: int, gradients: Sequence[torch.Tensor | None]) -> Tensors:
        """Add to the parameters' gradients; returns those of the inputs that ask for one.

        `gradients`: of the outputs that ask for one; on the last stage (None,).
        """
        inputs, outputs = self._kept.pop(microbatch)
        update = self._weights.backward(microbatch) if self._weights else nullcontext()
        with self._at("backward", microbatch, inputs), update:
            if outputs:
                torch.autograd.backward(outputs, gradients)
        return self._gradients(inputs)

    def input_half(self, microbatch: int, gradients: Sequence[torch.Tensor | None]) -> Tensors:
        """The gradients of the inputs alone, as `backward` returns them. Those of the weights are for later."""
        inputs, outputs = self._kept.pop(microbatch)
        asking = [] if self.is_first else [tensor for tensor in inputs if tensor.requires_grad]
        with self._at("input", microbatch, inputs):
            if outputs and asking:
                torch.autograd.backward(outputs, gradients, retain_graph=True, inputs=asking)
        self._later[microbatch] = outputs, tuple(gradients), inputs
        return self._gradients(inputs)

    def weight_half(self, microbatch: int) -> None:
        """Add to the parameters' gradients."""
        outputs, gradients, inputs = self._later.pop(microbatch)
        parameters = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
        with self._at("weight", microbatch, inputs):
            if outputs and parameters:
                torch.autograd.backward(outputs, gradients, inputs=parameters)

    def trial(self, microbatch: int, inputs: Tensors) -> Tensors:
        """The outputs for these inputs, and no trace: not in buffers, gradients, or the random state."""
        buffers = {name: buffer.clone() for name, buffer in self.module.named_buffers()}
        accelerators = [] if self.device.type == "cpu" else [self.device]
        kind = "cuda" if self.device.type == "cpu" else self.device.type  # of no device, on a CPU
        with self._noted("forward", microbatch, inputs), torch.random.fork_rng(accelerators, device_type=kind):
            return as_tensors(functional_call(self.module, buffers, inputs))

    def clear(self) -> None:
        """Forget what an unfinished batch has left behind."""
        self._kept.clear()
        self._later.clear()

    # -- inside -------------------------------------------------------------------------------------------------

    def _call(self, microbatch: int, inputs: Tensors) -> Any:
        return self._weights.call(microbatch, *inputs) if self._weights else self.module(*inputs)

    def _keep(self, microbatch: int, inputs: Tensors, outputs: Tensors) -> Tensors:
        self._kept[microbatch] = Kept(inputs, tuple(output for output in outputs if output.requires_grad))
        return tuple(output.detach() for output in outputs)

    def _gradients(self, inputs: Tensors) -> Tensors:
        if self.is_first:
            return ()
        asking = [tensor for tensor in inputs if tensor.requires_grad]
        return tuple(torch.zeros_like(tensor) if tensor.grad is None else tensor.grad for tensor in asking)

    def _check(self, got: tuple[Description, ...], expected: tuple[Description, ...]) -> None:
        if got != expected:
            raise ValueError(
                f"{self._name} returned {in_words(got)}; when it was tried with such inputs, {in_words(expected)}. "
                "What it returns may depend on the shapes of its inputs, not on their values; and after freezing or "
                "unfreezing layers, make a new Pipeline"
            )

    @contextmanager
    def _at(self, work: str, microbatch: int, inputs: Tensors) -> Iterator[None]:
        labels = {"version": self._weights.version(microbatch)} if self._weights else {}
        with self._noted(work, microbatch, inputs), region(work, microbatch=microbatch, stage=self.number, **labels):
            yield

    @contextmanager
    def _noted(self, work: str, microbatch: int, inputs: Tensors) -> Iterator[None]:
        try:
            yield
        except Exception as problem:
            source = "the batch" if self.is_first else f"stage {self.number - 1}"
            problem.add_note(
                f"In the {work} of micro-batch {microbatch} on {self._name}, "
                f"whose inputs were {in_words(described(inputs))} from {source}."
            )
            raise


def as_tensors(outputs: Any) -> Tensors:
    """What a module returned, as a tuple. Raises TypeError unless it is a tensor, or a tuple or list of tensors."""
    tensors = tuple(outputs) if isinstance(outputs, (tuple, list)) else (outputs,)
    if not tensors or not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
        seen = type(outputs).__name__
        raise TypeError(f"a stage hands on a tensor or a tuple of tensors; its module returned {seen}")
    return tensors
