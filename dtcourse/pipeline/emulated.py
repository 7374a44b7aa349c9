"""A layer of a chosen cost: to see a schedule's bubble, on few processors, as if each rank had one of its own.

    stage = Emulated(nn.Linear(8, 8), forward=0.01, input=0.01, weight=0.01)

Ranks that compute share the machine's processors: where they are more than processors, they take turns although the
schedule has them work side by side. Ranks that sleep are in nobody's way.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from .split_backward import Gradients, defer


class Emulated(nn.Module):
    """Computes what `module` does (one tensor), and sleeps besides: seconds in its forward, input half, weight half.

    A backward in one piece sleeps for both halves. There is a backward only if the module or its input wants gradients.
    Raises ValueError for a time that is negative.
    """

    def __init__(self, module: nn.Module, forward: float, input: float, weight: float) -> None:
        super().__init__()
        self.module, self.seconds = module, {"forward": forward, "input": input, "weight": weight}
        for name, seconds in self.seconds.items():
            if not 0 <= seconds < float("inf"):
                raise ValueError(f"{name} = {seconds!r}: must be a number of seconds, 0 or more")

    def forward(self, *inputs: Any) -> torch.Tensor:
        outputs = self.module(*inputs)
        time.sleep(self.seconds["forward"])
        return _Slow.apply(outputs, self.seconds["input"], self.seconds["weight"])


class _Slow(torch.autograd.Function):
    """The identity, with a backward that takes its time."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, input: float, weight: float) -> torch.Tensor:
        ctx.save_for_backward(x)  # a recomputation ends with the last tensor that was kept: let that be after the sleep
        ctx.input, ctx.weight = input, weight
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        time.sleep(ctx.input)
        defer((None, None), partial(_weight_half, ctx.weight))
        return gradient, None, None


def _weight_half(seconds: float, onto: Gradients) -> Gradients:
    time.sleep(seconds)
    return None, None
