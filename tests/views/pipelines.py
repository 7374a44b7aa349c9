"""Pipelines on real ranks: a layer a stage, run by the course's own `Pipeline`."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss

from dtcourse.pipeline.actions import Schedule
from dtcourse.pipeline.runner import Pipeline
from dtcourse.pipeline.weights import Naive


def train(schedule: Schedule, steps: int = 1, policy: type[Naive] | None = None) -> None:
    """`policy`: of the weights, for an asynchronous schedule."""
    stages = range(dist.get_rank(), schedule.stages, dist.get_world_size())
    modules = {stage: nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for stage in stages}
    weights = {s: policy(m, torch.optim.SGD(m.parameters(), 0.1)) for s, m in modules.items()} if policy else None
    pipeline = Pipeline(schedule, modules, mse_loss, weights=weights)
    for _ in range(steps):
        pipeline.step(torch.ones(2 * schedule.microbatches, 4), torch.zeros(2 * schedule.microbatches, 4))
