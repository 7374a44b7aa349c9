"""What the tests of model parallelism run on the ranks and, undivided, beside them. All in float64."""

from __future__ import annotations

import itertools

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from dtcourse.model_parallel.layers import Stage, own_layers
from dtcourse.model_parallel.lstm import unstack
from dtcourse.model_parallel.transformer import Block

WIDTHS = [6, 9, 5, 7, 8, 3]


def mlp_layers() -> list[nn.Module]:
    """Five layers, each of another width."""
    torch.manual_seed(0)
    pairs = itertools.pairwise(WIDTHS)
    return [nn.Sequential(nn.Linear(*pair), nn.Tanh()).double() for pair in pairs]


def batch(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(size)
    x = torch.randn(size, WIDTHS[0], generator=generator, dtype=torch.double)
    return x, torch.randint(0, WIDTHS[-1], (size,), generator=generator)


def gradients(module: nn.Module) -> list[torch.Tensor]:
    return [p.grad for p in module.parameters()]


def by_layers(sizes: list[int], batches: list[int]) -> tuple[list[torch.Tensor | None], list[torch.Tensor]]:
    """One stage a rank: what forward() returned for each batch, and the sum of the gradients."""
    stage = Stage(own_layers(mlp_layers(), sizes))
    outputs = []
    for size in batches:
        x, y = batch(size)
        outputs.append(stage.forward(x if stage.is_first else None))
        stage.backward(cross_entropy(outputs[-1], y) if stage.is_last else None)
    return [None if o is None else o.detach() for o in outputs], gradients(stage.layers)


def undivided(batches: list[int]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    model, outputs = nn.Sequential(*mlp_layers()), []
    for size in batches:
        x, y = batch(size)
        outputs.append(model(x))
        cross_entropy(outputs[-1], y).backward()
    return [o.detach() for o in outputs], gradients(model)


def stack(layers: int, **options) -> nn.LSTM:
    torch.manual_seed(1)
    return nn.LSTM(4, 6, num_layers=layers, dtype=torch.double, **options)


def sequence() -> torch.Tensor:
    return torch.randn(7, 3, 4, generator=torch.Generator().manual_seed(2), dtype=torch.double)  # time, batch, features


def stacked(sizes: list[int], **options) -> tuple[torch.Tensor | None, list[torch.Tensor]]:
    stage = Stage(own_layers(unstack(stack(sum(sizes), **options)), sizes))
    outputs = stage.forward(sequence())
    stage.backward(outputs.square().sum() if stage.is_last else None)
    return (outputs.detach() if stage.is_last else None), gradients(stage.layers)


FEATURES, HEADS = 20, 5


def block() -> Block:
    torch.manual_seed(3)
    return Block(FEATURES, HEADS).double()


def tokens() -> torch.Tensor:
    return torch.randn(2, 6, FEATURES, generator=torch.Generator().manual_seed(4), dtype=torch.double)


def same(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> bool:
    return all(torch.allclose(a, b, rtol=0, atol=1e-10) for a, b in zip(ours, theirs, strict=True))
