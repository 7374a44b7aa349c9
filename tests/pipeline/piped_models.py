"""Models and batches for the tests of the runner, the same on all ranks, and what one process makes of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

WIDTH = 4


def layers(stages: int) -> list[nn.Module]:
    """A module for each stage."""
    torch.manual_seed(stages)
    linear = lambda: nn.Linear(WIDTH, WIDTH)  # noqa: E731
    return [nn.Sequential(linear(), nn.Tanh(), linear()).double() for _ in range(stages)]


def mine(modules: Sequence[nn.Module]) -> dict[int, nn.Module]:
    """Those of this rank's stages."""
    return {s: modules[s] for s in range(dist.get_rank(), len(modules), dist.get_world_size())}


def own(stages: int) -> dict[int, nn.Module]:
    return mine(layers(stages))


def batch(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Samples and targets."""
    generator = torch.Generator().manual_seed(size)
    return tuple(torch.randn(size, WIDTH, dtype=torch.double, generator=generator) for _ in "xy")


def mean_of_squares(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs - targets).square().mean()


def sum_of_squares(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs - targets).square().sum()


def gradients(module: nn.Module) -> list[torch.Tensor | None]:
    return [parameter.grad for parameter in module.parameters()]


def alone(modules: Sequence[nn.Module], loss: Callable, inputs: Any, targets: Any) -> tuple[torch.Tensor, list[list]]:
    """Loss, and the gradients of each module, from one process with the whole batch."""
    outputs = inputs
    for module in modules:
        outputs = module(*outputs) if isinstance(outputs, tuple) else module(outputs)
    value = loss(outputs, targets)
    value.backward()
    return value.detach(), [gradients(module) for module in modules]


def same(got: Sequence, expected: Sequence, tolerance: float = 1e-10) -> bool:
    """Whether the tensors are alike, and None where None is expected."""
    return len(got) == len(expected) and all(
        a is b is None or (a is not None and b is not None and bool((a - b).abs().max() <= tolerance))
        for a, b in zip(got, expected, strict=True)
    )
