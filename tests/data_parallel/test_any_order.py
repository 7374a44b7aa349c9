"""Gradients that get ready in any order, of any parameters, with any shares: the average is right all the same."""

from __future__ import annotations

import random
import time

import pytest
import torch
import torch.distributed as dist
from torch import nn

from dtcourse.collectives.ring import ring_all_reduce
from dtcourse.data_parallel.buckets import Reducer
from dtcourse.data_parallel.optimizer import DistributedOptimizer

WORLD, WIDTH, STEPS = 3, 5, 12


class Plan:
    """What all ranks do, step by step: drawn alike on each."""

    def __init__(self, seed: int) -> None:
        drawn = random.Random(seed)
        self.branches = drawn.randint(1, 7)
        self.mib = drawn.choice([0, 1e-4, 1e-3, 128])
        self.steps = [self._step(drawn) for _ in range(STEPS)]

    def _step(self, drawn: random.Random) -> tuple[list[float], list[list[int]]]:
        """The share of each rank, and the branches that it uses, in its order."""
        samples = [drawn.choice([0, 1, 2, 5]) for _ in range(WORLD)]
        samples[drawn.randrange(WORLD)] += 1
        orders = [drawn.sample(range(self.branches), drawn.randint(0, self.branches)) for _ in range(WORLD)]
        return [n / sum(samples) for n in samples], orders

    def expected(self, step: int, branch: int) -> float | None:
        """Each element of the branch's gradient: rank r's is r+1."""
        shares, orders = self.steps[step]
        users = [rank for rank in range(WORLD) if branch in orders[rank] and shares[rank]]
        return sum(shares[rank] * (rank + 1) for rank in users) if users else None


def backward(model: nn.ModuleList, order: list[int]) -> None:
    if order:
        x = torch.full((1, WIDTH), dist.get_rank() + 1.0, dtype=torch.double)
        sum(model[branch](x) for branch in order).sum().backward()


def mistakes(seeds: list[int], way: str) -> list[tuple]:
    """The gradients that are not as expected."""
    found = []
    for seed in seeds:
        plan, rank = Plan(seed), dist.get_rank()
        late = random.Random(seed * WORLD + rank)
        model = nn.ModuleList(nn.Linear(WIDTH, WIDTH, dtype=torch.double) for _ in range(plan.branches))
        for parameter in model.parameters():
            nn.init.ones_(parameter)
            parameter.register_hook(lambda _, late=late: time.sleep(late.choice([0, 0, 0, 0.002])))
        step = buckets(model, plan) if way == "buckets" else horovod(model, plan, late.choice([0, 0.1, 1, 3]))
        for number, (shares, orders) in enumerate(plan.steps):
            model.zero_grad()
            step(shares[rank], orders[rank])
            for branch in range(plan.branches):
                gradient, expected = model[branch].weight.grad, plan.expected(number, branch)
                if (gradient is None) != (expected is None) or (
                    gradient is not None and not torch.allclose(gradient, torch.full_like(gradient, expected))
                ):
                    found.append((seed, number, branch, expected, gradient))
    return found


def buckets(model: nn.ModuleList, plan: Plan):
    reducer = Reducer(model, ring_all_reduce, bucket_mib=plan.mib, first_bucket_mib=plan.mib)

    def step(share: float, order: list[int]) -> None:
        with reducer.step(share):
            backward(model, order)

    return step


def horovod(model: nn.ModuleList, plan: Plan, cycle_ms: float):
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = DistributedOptimizer(sgd, model.named_parameters(), fusion_mib=plan.mib, cycle_ms=cycle_ms)

    def step(share: float, order: list[int]) -> None:
        optimizer.share = share
        backward(model, order)
        optimizer.synchronize()

    return step


@pytest.mark.parametrize("backend", ["shared_memory", "gloo"])
@pytest.mark.parametrize("way", ["buckets", "DistributedOptimizer"])
def test_any_order(cluster_of, backend, way):
    assert cluster_of(WORLD, backend).run(mistakes, list(range(5)), way).results == [[]] * WORLD
