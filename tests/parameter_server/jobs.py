"""What the tests run on the ranks: a small model in float64, servers, and workers with batches of their own."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

from dtcourse.parameter_server.server import serve
from dtcourse.parameter_server.worker import Worker

FEATURES, CLASSES = 6, 3


def small_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, CLASSES)).double()


BYTES = sum(p.numel() * 8 for p in small_model().parameters())


def batch(step: int, worker: int, size: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    """The same for a step and a worker, wherever it is made."""
    generator = torch.Generator().manual_seed(1000 * step + worker)
    x = torch.randn(size, FEATURES, generator=generator, dtype=torch.double)
    return x, torch.randint(0, CLASSES, (size,), generator=generator)


def train(policy: Any, servers: int, steps: int, optimizer: Any = torch.optim.SGD, pauses: Any = None, **options: Any):
    """A server returns its parameters, a worker the parameters it ends with. `pauses(worker, step)`: seconds."""
    model = small_model()
    if dist.get_rank() < servers:
        return serve(model, optimizer, policy, servers=servers, **({"lr": 0.2} | options))
    worker = Worker(model, servers=servers)
    while (step := worker.pull()) < steps:
        if pauses:
            time.sleep(pauses(dist.get_rank(), step))
        x, y = batch(step, dist.get_rank())
        loss = cross_entropy(model(x), y)
        loss.backward()
        worker.push(samples=len(x), loss=loss)
    worker.finish()
    return {name: p.detach() for name, p in model.named_parameters()}
