"""Stock DistributedDataParallel and stock pipelining over our transport, against themselves over gloo."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.parallel import DistributedDataParallel

from benchmarks.table import Row
from dtcourse import Cluster


def rows() -> Iterator[Row]:
    with Cluster(4) as cluster:
        ours, gloo = _slowest(cluster, _ddp)
        yield Row("a step of stock DDP, 4 ranks, 4 M parameters", "ms", ours, 0.8, gloo, "gloo")
        ours, gloo = _slowest(cluster, _pipeline)
        yield Row("a step of stock pipelining, 1F1B, 4 stages", "ms", ours, 1.0, gloo, "gloo")


def _slowest(cluster: Cluster, function: Callable[[], tuple[float, float]]) -> tuple[float, float]:
    results = cluster.run(function).results
    return max(r[0] for r in results) * 1e3, max(r[1] for r in results) * 1e3


def _turns(steps: list[Callable[[], object]], rounds: int = 15) -> tuple[float, ...]:
    taken: list[list[float]] = [[] for _ in steps]
    for _ in range(rounds):
        for step, times in zip(steps, taken, strict=True):
            dist.barrier()
            start = time.perf_counter()
            step()
            times.append(time.perf_counter() - start)
    return tuple(statistics.median(times[2:]) for times in taken)


def _groups() -> list[dist.ProcessGroup]:
    return [dist.group.WORLD, dist.new_group(backend="gloo")]


def _ddp() -> tuple[float, ...]:
    steps = []
    for group in _groups():
        model = nn.Sequential(*[nn.Linear(1000, 1000) for _ in range(4)])
        parallel = DistributedDataParallel(model, process_group=group)
        x = torch.randn(16, 1000)
        steps.append(lambda parallel=parallel, x=x: parallel(x).sum().backward())
    return _turns(steps)


def _pipeline() -> tuple[float, ...]:
    rank, steps = dist.get_rank(), []
    x, y = torch.randn(64, 256), torch.randn(64, 256)
    for group in _groups():
        layer = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256))
        stage = PipelineStage(layer, rank, 4, torch.device("cpu"), group=group)
        schedule = Schedule1F1B(stage, n_microbatches=8, loss_fn=nn.functional.mse_loss)

        def step(schedule: Schedule1F1B = schedule) -> None:
            if rank == 0:
                schedule.step(x)
            elif rank == 3:
                schedule.step(target=y)
            else:
                schedule.step()

        steps.append(step)
    return _turns(steps)
