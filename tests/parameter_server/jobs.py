"""What the tests run on the ranks: a small model in float64, servers, and workers with batches of their own."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

from dtcourse.parameter_server.server import serve
from dtcourse.parameter_server.worker import Worker

FEATURES, CLASSES = 6, 3
LR = 0.2


def small_model(hidden: int = 8) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, hidden), nn.Tanh(), nn.Linear(hidden, CLASSES)).double()


BYTES = sum(p.numel() * 8 for p in small_model().parameters())


def batch(step: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The whole batch of a step; the same wherever it is made."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(size, FEATURES, generator=generator, dtype=torch.double)
    return x, torch.randint(0, CLASSES, (size,), generator=generator)


def name_of(policy: Any) -> str:
    return type(policy).__name__


def pauses(seed: int, slowest: float = 0.003) -> Callable[[int, int], float]:
    """How long a rank sleeps in a step: each rank has a speed of its own, and moods."""

    def pause(rank: int, step: int) -> float:
        speed = random.Random(f"{seed} {rank}").choice([0, 0.2, 1])
        return speed * slowest * random.Random(f"{seed} {rank} {step}").random()

    return pause


def train(
    policy: Any,
    servers: int,
    sizes: list[int],
    *,
    optimizer: Any = torch.optim.SGD,
    pause: Callable[[int, int], float] | None = None,
    dies: tuple[int, int] | None = None,
    **options: Any,
) -> dict[str, torch.Tensor]:
    """A server returns its parameters, a worker those it ends with.

    `sizes`: samples of the batch of each step, shared among the workers, the first ones getting more. `dies`: (rank,
    step) of a worker that is killed before it pushes.
    """
    model = small_model()
    if dist.get_rank() < servers:
        return serve(model, optimizer, policy, servers=servers, **({"lr": LR} | options))
    me, workers = dist.get_rank() - servers, dist.get_world_size() - servers
    worker = Worker(model, servers=servers)
    while (step := worker.pull()) < len(sizes):
        time.sleep(pause(dist.get_rank(), step) if pause else 0)
        x, y = (part.tensor_split(workers)[me] for part in batch(step, sizes[step]))
        loss = cross_entropy(model(x), y)
        loss.backward()
        if dies == (dist.get_rank(), step):
            os.kill(os.getpid(), signal.SIGKILL)
        worker.push(samples=len(x), loss=loss)
    worker.finish()
    return {name: p.detach() for name, p in model.named_parameters()}


def plain(sizes: list[int], optimizer: Any = torch.optim.SGD, schedule: Any = None, **options: Any):
    """One process on whole batches: the parameters after them, and the loss of each."""
    model, losses = small_model(), []
    steps = optimizer(model.parameters(), **({"lr": LR} | options))
    schedule = schedule(steps) if schedule else None
    for step, size in enumerate(sizes):
        x, y = batch(step, size)
        steps.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        steps.step()
        if schedule:
            schedule.step()
        losses.append(loss.item())
    return {name: p.detach() for name, p in model.named_parameters()}, losses


def merged(run: Any, servers: int) -> dict[str, torch.Tensor]:
    """The parameters of all shards."""
    return {name: p for shard in run.results[:servers] for name, p in shard.items()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor], tolerance: float = 1e-12) -> bool:
    return a.keys() == b.keys() and all(torch.allclose(a[k], b[k], rtol=0, atol=tolerance) for k in a)
