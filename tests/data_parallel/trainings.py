"""Trainings whose result one process can compute as well: a model with everything that is awkward, and the ways."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn

from dtcourse.data_parallel.replicas import average_gradients, broadcast_parameters
from dtcourse.data_parallel.shares import share_of

WIDTH, STEPS = 6, 20


class Awkward(nn.Module):
    """Tied weights, a parameter used three times, a frozen one, buffers, a branch that only some samples take, one that
    nobody takes, and gradients that autograd makes as views (of `rows`, by expand and select)."""

    def __init__(self, dtype=torch.float64):
        super().__init__()
        self.first, self.tied = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.tied.weight = self.first.weight
        self.frozen, self.norm = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)
        self.frozen.requires_grad_(False)
        self.rare, self.never = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.rows, self.scale = nn.Parameter(torch.ones(1, WIDTH)), nn.Parameter(torch.ones(()))
        self.to(dtype).eval()  # batch norm by running numbers: the statistics of a share are not those of the batch

    def forward(self, x):
        x = self.norm(self.frozen(torch.tanh(self.first(x)))) * self.scale
        rare = x[:, 0] > 0.4
        if rare.any():
            x = torch.where(rare[:, None], self.rare(x), x)
        return self.tied(x * self.scale + self.rows.expand(len(x), WIDTH)) * self.scale.expand(WIDTH)


def model(dtype=torch.float64):
    torch.manual_seed(3)
    return Awkward(dtype)


def optimizer(module):
    """Moves a parameter whose gradient is zero, and leaves alone one that has none."""
    return torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9, weight_decay=0.1)


def batches(sizes, dtype=torch.float64, steps=STEPS):
    """For each step the samples of each rank, and with them those of all ranks; sizes: of each rank."""
    torch.manual_seed(4)
    made = [
        (torch.randn(sum(sizes), WIDTH, dtype=dtype), torch.randn(sum(sizes), WIDTH, dtype=dtype)) for _ in range(steps)
    ]
    return [(list(zip(x.split(sizes), y.split(sizes), strict=True)), (x, y)) for x, y in made]


def loss_of(module, x, y):
    return (module(x) - y).square().mean()


def state(module):
    return [value.clone() for value in module.state_dict().values()]


def alone(data, set_to_none=True, dtype=torch.float64):
    """The weights after one process has done it all."""
    module = model(dtype)
    sgd = optimizer(module)
    for _, (x, y) in data:
        loss_of(module, x, y).backward()
        sgd.step()
        sgd.zero_grad(set_to_none=set_to_none)
    return state(module)


def plain(module, all_reduce):
    """The plain way, in the shape of a Reducer."""

    @contextlib.contextmanager
    def step(share=None):
        yield
        average_gradients(module.parameters(), all_reduce, share)

    return SimpleNamespace(step=step)


def trained(data, make, all_reduce, set_to_none=True, accumulate=1, dtype=torch.float64, **options):
    """On a rank: the weights after the same steps. `accumulate`: in so many backward passes a step."""
    rank, module = dist.get_rank(), model(dtype)
    if rank:
        for tensor in (*module.parameters(), *module.buffers()):
            tensor.data = torch.zeros_like(tensor)
    broadcast_parameters(module)
    reducer, sgd = make(module, all_reduce, **options), optimizer(module)
    forward = getattr(reducer, "module", module)
    for ranks, _ in data:
        x, y = ranks[rank]
        share = share_of(len(x))
        parts = list(zip(x.tensor_split(accumulate), y.tensor_split(accumulate), strict=True)) if len(x) else []
        for number, (a, b) in enumerate(parts):
            part = loss_of(forward, a, b) * len(a) / len(x)
            if number < len(parts) - 1:
                part.backward()
            else:
                with reducer.step(share):
                    part.backward()
        if not parts:
            with reducer.step(share):
                pass
        sgd.step()
        sgd.zero_grad(set_to_none=set_to_none)
    return state(module)
