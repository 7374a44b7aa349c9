"""A parameter server of thirty lines on real ranks: rank 0 serves, the others pull, compute and push as they come."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from dtcourse import mark, region

SIZE = 1000  # float32; one more carries the version


def asynchronous(steps: int, slowest: float = 1.0) -> int:
    """Minimise the sum of squares with stale gradients; the last rank computes `slowest` times as long."""
    if dist.get_rank() == 0:
        return serve(steps)
    last = dist.get_rank() == dist.get_world_size() - 1
    return work(steps, slowest if last else 1.0)


def serve(steps: int) -> int:
    workers = dist.get_world_size() - 1
    weights, push, version = torch.ones(SIZE), torch.empty(SIZE + 2), 0  # what is pushed: gradient, version, step
    for worker in range(1, workers + 1):
        dist.send(torch.cat([weights, torch.tensor([0.0])]), worker)
    for _ in range(workers * steps, 0, -1):
        worker = dist.recv(push)
        with region("update", worker=worker):
            time.sleep(0.001)
            weights -= 0.1 * push[:SIZE]
            staleness, version = version - int(push[-2]), version + 1
            mark("update", version=version, worker=worker, step=int(push[-1]), staleness=staleness)
        if int(push[-1]) + 1 < steps:
            dist.send(torch.cat([weights, torch.tensor([float(version)])]), worker)
    return version


def work(steps: int, slowness: float) -> int:
    pulled = torch.empty(SIZE + 1)
    for step in range(steps):
        with region("pull", step=step):
            dist.recv(pulled, 0)
        with region("compute", step=step):
            time.sleep(0.008 * slowness)
            weights, version = pulled[:SIZE], int(pulled[-1])
            mark("loss", value=(weights**2).mean(), step=step, version=version)
        with region("push", step=step):
            dist.send(torch.cat([weights, torch.tensor([float(version), float(step)])]), 0)
    return steps
