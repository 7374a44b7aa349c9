"""A model with everything that makes averaging hard, batches of unequal shares for it, and its training in one process.

embedding, out    one weight for both (tied)
rarely            used by the samples that begin with token 0: on some ranks only, and in some steps by nobody
never             used by nobody
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import cross_entropy

TOKENS, STEPS = 7, 20


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embedding = nn.Embedding(TOKENS, 5)
        self.hidden = nn.Linear(15, 6)
        self.rarely = nn.Linear(6, 6)
        self.never = nn.Linear(6, 4)
        self.last = nn.Linear(6, 5)
        self.out = nn.Linear(5, TOKENS)
        self.out.weight = self.embedding.weight
        self.double()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:  # (B, 3) -> (B, TOKENS)
        x = self.hidden(self.embedding(tokens).flatten(1)).tanh()
        rare = tokens[:, 0] == 0
        if rare.any():
            x = x + rare[:, None] * self.rarely(x).tanh()
        return self.out(self.last(x))


def loss_of(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """The mean over the samples (B, 4): from three tokens to the fourth."""
    return cross_entropy(model(batch[:, :3]), batch[:, 3])


def sgd(parameters) -> torch.optim.SGD:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01)


def batches(world: int, everybody: bool = True) -> list[list[torch.Tensor]]:
    """For each step, each rank's batch of 1 to 4 samples. Without `everybody`, in some steps some ranks have none."""
    generator = torch.Generator().manual_seed(world)
    found = []
    for step in range(STEPS):
        sizes = torch.randint(1, 5, (world,), generator=generator)
        if not everybody and world > 1:
            sizes[torch.randint(world, (1,), generator=generator)] = 0
        step_batches = [torch.randint(TOKENS, (n, 4), generator=generator) for n in sizes.tolist()]
        if step % 3 == 1:  # nobody uses `rarely`
            for batch in step_batches:
                batch[:, 0].clamp_(min=1)
        found.append(step_batches)
    return found


def alone(steps: list[list[torch.Tensor]]) -> dict[str, torch.Tensor]:
    """The weights after training in one process, on the batches of all ranks together."""
    model = Model()
    optimizer = sgd(model.parameters())
    for step_batches in steps:
        optimizer.zero_grad()
        loss_of(model, torch.cat(step_batches)).backward()
        optimizer.step()
    return model.state_dict()


def difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)
