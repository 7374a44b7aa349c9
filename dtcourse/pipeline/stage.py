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

from dtcourse.events import region

from .boundary import Description, described, in_words
from .microbatches import Batch
from .recompute import buffers_kept, recomputed
from .split_backward import Later, deferrable, input_half

Loss = Callable[[Any, Any], torch.Tensor]  # loss(outputs of the last stage, targets)
Tensors = tuple[torch.Tensor, ...]
WORDS = {"input": "input half", "weight": "weight half"}


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
    """Stage `number` of `stages`.

    loss       on the last stage alone
    weights    in an asynchronous schedule: which weights a micro-batch meets
    recompute  keep the inputs alone, and compute the rest again in the backward
    halves     the schedule asks for input and weight halves

    What the module or the loss raises gets a note: stage, micro-batch, what came in.
    """

    def __init__(
        self,
        module: nn.Module,
        number: int,
        stages: int,
        loss: Loss | None = None,
        *,
        weights: Weights | None = None,
        recompute: bool = False,
        halves: bool = False,
    ) -> None:
        self.module = deferrable(module) if halves else module
        self.number, self._loss, self._weights, self._recompute = number, loss, weights, recompute
        self.is_first, self.is_last = number == 0, number == stages - 1
        tensors = chain(module.parameters(), module.buffers())
        self.device = next((tensor.device for tensor in tensors), torch.get_default_device())
        self._name = f"stage {number} of {stages} (rank {dist.get_rank()})"
        self._kept: dict[int, Kept] = {}
        self._later: dict[int, Later] = {}  # input halves whose weight half is still to come

    def forward(self, microbatch: int, inputs: Tensors, expected: tuple[Description, ...]) -> Tensors:
        """The outputs, cut off from the graph. Raises ValueError if they are not as `expected`."""
        with self._at("forward", microbatch, inputs):
            outputs = as_tensors(self._call(microbatch, inputs))
            self._check(described(outputs), expected)
        return self._keep(microbatch, inputs, outputs)

    def forward_to_loss(self, microbatch: int, inputs: Tensors, targets: Batch, share: float) -> torch.Tensor:
        """On the last stage: the loss of a micro-batch, times its share in the batch."""
        with self._at("forward", microbatch, inputs):
            loss = self._loss(self._call(microbatch, inputs), targets)
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
        """The gradients of the inputs, as `backward` returns them. Those of the weights are for later."""
        inputs, outputs = self._kept.pop(microbatch)
        with self._at("input", microbatch, inputs), input_half() as later:
            if outputs:
                torch.autograd.backward(outputs, gradients)
        self._later[microbatch] = later
        return self._gradients(inputs)

    def weight_half(self, microbatch: int) -> None:
        """Add to the parameters' gradients what the input half has left."""
        with self._at("weight", microbatch):
            self._later.pop(microbatch).weight_half()

    def trial(self, microbatch: int, inputs: Tensors) -> Tensors:
        """The outputs for these inputs, and no trace: not in buffers, gradients, or the random state."""
        accelerators = [] if self.device.type == "cpu" else [self.device]
        kind = "cuda" if self.device.type == "cpu" else self.device.type  # of no device, on a CPU
        random_state = torch.random.fork_rng(accelerators, device_type=kind)
        with self._noted("forward", microbatch, inputs), random_state, buffers_kept(self.module):
            return as_tensors(self.module(*inputs))

    def clear(self) -> None:
        """Forget what an unfinished batch has left behind."""
        self._kept.clear()
        self._later.clear()

    # -- inside -------------------------------------------------------------------------------------------------

    def _call(self, microbatch: int, inputs: Tensors) -> Any:
        if self._weights:
            return self._weights.call(microbatch, *inputs)
        return recomputed(self.module, *inputs) if self._recompute else self.module(*inputs)

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
                f"{self._name} returned {in_words(got, True)}; when it was tried with such inputs, "
                f"{in_words(expected, True)}. What it returns may depend on the shapes of its inputs, not on their "
                "values; and after freezing or unfreezing layers, make a new Pipeline"
            )

    @contextmanager
    def _at(self, work: str, microbatch: int, inputs: Tensors = ()) -> Iterator[None]:
        labels = {"version": self._weights.version(microbatch)} if self._weights else {}
        with self._noted(work, microbatch, inputs), region(work, microbatch=microbatch, stage=self.number, **labels):
            yield

    @contextmanager
    def _noted(self, work: str, microbatch: int, inputs: Tensors) -> Iterator[None]:
        try:
            yield
        except Exception as problem:
            source = "the batch" if self.is_first else f"stage {self.number - 1}"
            came = f", whose inputs were {in_words(described(inputs))} from {source}" if inputs else ""
            problem.add_note(f"In the {WORDS.get(work, work)} of micro-batch {microbatch} on {self._name}{came}.")
            raise


def as_tensors(outputs: Any) -> Tensors:
    """What a module returned, as a tuple. Raises TypeError unless it is a tensor, or a tuple or list of tensors."""
    tensors = tuple(outputs) if isinstance(outputs, (tuple, list)) else (outputs,)
    if not tensors or not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
        seen = type(outputs).__name__
        if isinstance(outputs, (tuple, list)):
            seen += f" of ({', '.join(type(one).__name__ for one in outputs)})"
        raise TypeError(f"a stage hands on a tensor or a tuple of tensors; its module returned {seen}")
    return tensors
