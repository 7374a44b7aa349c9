"""A backward in two halves: first the gradients of inputs, later those of weights.

    deferrable(module)                     # once; its linear and convolution layers can now wait with their weights
    outputs = module(inputs)
    with input_half() as later:
        torch.autograd.backward(outputs, gradient)     # I: inputs.grad is there
    later.weight_half()                                # W: now so are the weights' .grad

The naive way asks autograd twice, first for the inputs, then for the weights. But to reach the weights of a layer, it
has to go once more through all layers after it: I is computed twice, and I + W costs 1.3 times B. Here each layer keeps
the two things that its weight gradient is made of, and nothing is computed twice. For y = x Wt + b:

    I       dx = dy W
    keep    x, dy
    W       dW = dyt x       db = sum of dy over the samples

Memory: between the halves a layer's input stays, and the gradient of its output besides; all else goes with I.

What waits are weight and bias of nn.Linear and nn.Conv1d, 2d and 3d: nearly all of the work. What gets its gradient in
the input half already: other layers (normalisations, embeddings), weights that are computed from others (weight norm),
weights with a hook, and whatever runs under autocast. Outside of `input_half` nothing waits.

Source: Qi et al., "Zero bubble pipeline parallelism" (2023).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

Gradients: TypeAlias = tuple[torch.Tensor | None, torch.Tensor | None]  # of weight and bias
# From the sums so far, or None, to new gradients; or to the sums themselves, added to in place: that is cheaper.
Work: TypeAlias = Callable[[Gradients], Gradients]


class Later:
    """What an input half has left to do."""

    def __init__(self) -> None:
        self._work: list[tuple[Gradients, Work]] = []  # what it is for, and what computes it

    def keep(self, parameters: Gradients, work: Work) -> None:
        """Remember to compute the gradients of these parameters."""
        self._work.append((parameters, work))

    @torch.no_grad()  # or the gradients would have a graph, and keep what they are made of
    def weight_half(self) -> None:
        """Compute all that was kept, add it to the parameters' .grad, and forget it."""
        while self._work:
            parameters, work = self._work.pop(0)
            onto = tuple(p.grad if p is not None and p.is_leaf else None for p in parameters)
            for parameter, sum_so_far, gradient in zip(parameters, onto, work(onto), strict=True):
                if gradient is not None and gradient is not sum_so_far:
                    accumulate(parameter, gradient)


def accumulate(parameter: torch.Tensor, gradient: torch.Tensor) -> None:
    """Add to a parameter's .grad; if it is a part of a larger one, to that one's."""
    if not parameter.is_leaf:
        torch.autograd.backward(parameter, gradient)
    elif parameter.grad is None:
        parameter.grad = gradient
    else:
        parameter.grad += gradient


# The input half that is under way. Autograd may work in a thread of its own: nothing narrower would reach it there.
_later: Later | None = None


@contextmanager
def input_half() -> Iterator[Later]:
    """A backward in this block computes the gradients of inputs; what it yields has the weight half.

    Raises RuntimeError inside of another one.
    """
    global _later
    if _later is not None:
        raise RuntimeError("an input half inside of an input half: leave the first block before you begin the next")
    _later = Later()
    try:
        yield _later
    finally:
        _later = None


def defer(parameters: Gradients, work: Work) -> Gradients:
    """For the backward of an autograd function: do this work, unless it can wait; then there are no gradients yet."""
    if _later is None:
        return work((None, None))
    _later.keep(parameters, work)
    return None, None


def deferrable(module: nn.Module) -> nn.Module:
    """Prepare the layers of `module`, in place. It computes what it did; deep copies and state dicts are as before."""
    for layer in module.modules():
        forward = FORWARDS.get(type(layer).forward)
        if forward is not None:
            layer.forward = partial(forward, layer)
    return module


def linear(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    """The forward of nn.Linear: (..., inputs) to (..., outputs)."""
    if not can_wait(x, layer.weight, layer.bias):
        return nn.Linear.forward(layer, x)
    if x.dim() == 1:
        return linear(layer, x[None])[0]
    y = _Layer.apply(Linear(), x.flatten(0, -2), layer.weight, layer.bias)
    return y.view(*x.shape[:-1], len(layer.weight)) if x.dim() > 2 else y


def convolution(layer: nn.Conv1d | nn.Conv2d | nn.Conv3d, x: torch.Tensor) -> torch.Tensor:
    """The forward of a convolution: (samples, channels, ...) to (samples, channels, ...), or one sample alone."""
    if not can_wait(x, layer.weight, layer.bias):
        return type(layer).forward(layer, x)
    if x.dim() == layer.weight.dim() - 1:
        return convolution(layer, x[None])[0]
    padding = layer.padding
    if isinstance(padding, str) or layer.padding_mode != "zeros":
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        x, padding = F.pad(x, layer._reversed_padding_repeated_twice, mode), [0] * (x.dim() - 2)
    return _Layer.apply(Convolution(layer.stride, padding, layer.dilation, layer.groups), x, layer.weight, layer.bias)


FORWARDS: dict[Callable[..., torch.Tensor], Callable[..., torch.Tensor]] = {
    nn.Linear.forward: linear,
    nn.Conv1d.forward: convolution,
    nn.Conv2d.forward: convolution,
    nn.Conv3d.forward: convolution,
}


def can_wait(x: torch.Tensor, *parameters: torch.Tensor | None) -> bool:
    """Whether the gradients of these parameters can come later."""
    if torch.is_autocast_enabled(x.device.type):
        return False  # it casts the weights, for each layer anew
    for parameter in parameters:
        if parameter is not None:
            source = parameter._base if parameter._is_view() else parameter
            # The input half passes nothing on to a weight, but passes it on: that would use up the graph of a weight
            # that is computed, and call hooks for nothing.
            if not source.is_leaf or source.is_complex() or hooked(source) or hooked(parameter):
                return False
    return True


def hooked(tensor: torch.Tensor) -> bool:
    """Whether somebody wants to be called when the tensor gets a gradient."""
    return bool(tensor._backward_hooks or tensor._post_accumulate_grad_hooks)


class Linear:
    """y = x Wt + b, (samples, inputs) to (samples, outputs), and the two halves of its backward.

    `needs`: whether weight and bias want a gradient.
    """

    def forward(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return F.linear(x, weight, bias)

    def input_gradient(self, dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return dy @ weight

    def weight_gradients(
        self, dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, needs: list[bool], onto: Gradients
    ) -> Gradients:
        dw, db = None, dy.sum(0) if needs[1] else None
        if needs[0]:
            dw = dy.T @ x if onto[0] is None else onto[0].addmm_(dy.T, x)  # without a tensor of its own for the summand
        return dw, db


@dataclass(frozen=True)
class Convolution:
    """y = x * W + b; autograd's own formula, asked for one half at a time."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    def forward(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        function = (F.conv1d, F.conv2d, F.conv3d)[len(self.stride) - 1]
        return function(x, weight, bias, self.stride, self.padding, self.dilation, self.groups)

    def input_gradient(self, dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return self._gradients(dy, x, weight, (True, False, False))[0]

    def weight_gradients(
        self, dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, needs: list[bool], onto: Gradients
    ) -> Gradients:
        return self._gradients(dy, x, weight, (False, *needs))[1:]

    def _gradients(self, dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, wanted: tuple[bool, ...]) -> Any:
        sizes, nothing = [weight.shape[0]], [0] * len(self.stride)
        return torch.ops.aten.convolution_backward.default(
            dy, x, weight, sizes, self.stride, self.padding, self.dilation, False, nothing, self.groups, wanted
        )


Operation: TypeAlias = Linear | Convolution


class _Layer(torch.autograd.Function):
    """An operation whose weight gradients can wait."""

    @staticmethod
    def forward(
        ctx: Any, operation: Operation, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.operation, ctx.parameters = operation, (weight, bias)
        return operation.forward(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        _, needs_x, *needs = ctx.needs_input_grad
        weight_half = partial(ctx.operation.weight_gradients, dy, x, weight, needs)
        dx = ctx.operation.input_gradient(dy, x, weight) if needs_x else None
        return None, dx, *(defer(ctx.parameters, weight_half) if any(needs) else (None, None))
