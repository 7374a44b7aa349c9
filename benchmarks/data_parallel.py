"""A step of our buckets against stock DistributedDataParallel, and what overlap gains on a slow link."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.table import Row
from dtcourse import Cluster, Link
from dtcourse.collectives.ring import ring_all_reduce
from dtcourse.data_parallel.buckets import Reducer
from dtcourse.pipeline.emulated import Emulated

RANKS, ROUNDS = 4, 30
LAYERS, WIDTH = 20, 512  # of 1 MiB each
BACKWARD = 0.25  # seconds, about as long as 20 MiB take on the link: 2 (N-1)/N of them, at 1 Gbit/s


def rows() -> Iterator[Row]:
    with Cluster(RANKS) as cluster:
        ours, stock = (statistics.median(rounds) * 1e3 for rounds in _slowest(cluster, _against_stock))
        yield Row("a step of our buckets, 4 ranks, 4 M parameters", "ms", ours, 0.7, stock, "stock DDP, gloo")
    with Cluster(RANKS, link=Link("1 Gbit/s", "50 us")) as cluster:
        overlapped, after = (min(rounds) * 1e3 for rounds in _slowest(cluster, _overlap))  # sleepers never wake early
        yield Row("a step with overlap, 20 MB, 1 Gbit/s", "ms", overlapped, 0.75, after, "without overlap")


def _slowest(cluster: Cluster, function: Callable[[], list[list[float]]]) -> list[list[float]]:
    """Of each step, for each round, the seconds of the slowest rank."""
    steps = zip(*cluster.run(function).results, strict=True)
    return [[max(ranks) for ranks in zip(*rounds, strict=True)] for rounds in steps]


def _turns(steps: list[Callable[[], object]], rounds: int) -> list[list[float]]:
    """On a rank: the seconds of steps that take turns, round by round."""
    taken: list[list[float]] = [[] for _ in steps]
    for _ in range(rounds):
        for step, times in zip(steps, taken, strict=True):
            dist.barrier()
            start = time.perf_counter()
            step()
            times.append(time.perf_counter() - start)
    return [times[2:] for times in taken]


def _against_stock() -> list[list[float]]:
    x = torch.randn(16, 1000)
    return _turns([_our_step(x), _stock_step(x, dist.new_group(backend="gloo"))], ROUNDS)


def _model() -> nn.Module:
    return nn.Sequential(*[nn.Linear(1000, 1000) for _ in range(4)])


def _our_step(x: torch.Tensor) -> Callable[[], None]:
    model = _model()
    reducer = Reducer(model, dist.all_reduce)

    def step() -> None:
        with reducer.step():
            model(x).sum().backward()
        model.zero_grad()

    return step


def _stock_step(x: torch.Tensor, group: dist.ProcessGroup) -> Callable[[], None]:
    model = _model()
    parallel = DistributedDataParallel(model, process_group=group)

    def step() -> None:
        parallel(x).sum().backward()
        model.zero_grad()

    return step


def _overlap() -> list[list[float]]:
    """The backward pass sleeps, as if each rank had a processor of its own."""
    layers = [Emulated(nn.Linear(WIDTH, WIDTH, bias=False), 0, BACKWARD / LAYERS, 0) for _ in range(LAYERS)]
    model, x = nn.Sequential(*layers), torch.randn(2, WIDTH)

    def step(reducer: Reducer) -> None:
        with reducer.step():
            model(x).sum().backward()
        model.zero_grad()

    reducers = [Reducer(model, ring_all_reduce, bucket_mib=2, overlap=overlap) for overlap in (True, False)]
    return _turns([partial(step, reducer) for reducer in reducers], rounds=10)
