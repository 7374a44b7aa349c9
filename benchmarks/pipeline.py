"""Our pipeline against stock pipelining, measured bubbles against their formulas, and the halves of a backward."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn.functional import mse_loss

from benchmarks.table import Row
from dtcourse import Cluster
from dtcourse.model_parallel.transformer import Block
from dtcourse.pipeline.actions import Schedule
from dtcourse.pipeline.emulated import Emulated
from dtcourse.pipeline.runner import Pipeline
from dtcourse.pipeline.schedules import gpipe, interleaved, one_f_one_b
from dtcourse.pipeline.split_backward import deferrable, input_half
from dtcourse.pipeline.zero_bubble import zero_bubble_h1, zero_bubble_h2

RANKS, MICROBATCHES = 4, 8  # P and M
WIDTH, SAMPLES = 256, 2048  # of the layers; of a batch
ROUNDS = 25
TRIES = 10
COST = 0.02  # seconds of an emulated F, I or W of one stage a rank


def rows() -> Iterator[Row]:
    with Cluster(RANKS) as cluster:
        yield from _against_stock(cluster)
        yield from _bubbles(cluster)
    yield from _halves()


# -- a step against stock pipelining --------------------------------------------------------------------------------


def _against_stock(cluster: Cluster) -> Iterator[Row]:
    for name, ours, theirs in [("GPipe", gpipe, ScheduleGPipe), ("1F1B", one_f_one_b, Schedule1F1B)]:
        results = cluster.run(_steps, ours(RANKS, MICROBATCHES), theirs).results
        rounds = [[max(ranks) for ranks in zip(*times, strict=True)] for times in zip(*results, strict=True)]
        memory, gloo, stock = (statistics.median(seconds) * 1e3 for seconds in rounds)
        yield Row(f"a step of our pipeline, {name}, on gloo", "ms", gloo, 1.0, stock, "stock, gloo")
        yield Row(f"a step of our pipeline, {name}, shared memory", "ms", memory, 0.8, stock, "stock, gloo")


def _steps(schedule: Schedule, stock: Callable[..., ScheduleGPipe | Schedule1F1B]) -> list[list[float]]:
    """On a rank: seconds of the steps of ours, ours over gloo, stock over gloo, which take turns."""
    gloo = dist.new_group(backend="gloo")
    steps = [_our_step(schedule, dist.group.WORLD), _our_step(schedule, gloo), _stock_step(stock, gloo)]
    taken: list[list[float]] = [[] for _ in steps]
    for _ in range(ROUNDS):
        for step, times in zip(steps, taken, strict=True):
            dist.barrier()
            start = time.perf_counter()
            step()
            times.append(time.perf_counter() - start)
    return [times[2:] for times in taken]


def _stage_module() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU())


def _batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(SAMPLES, WIDTH), torch.randn(SAMPLES, WIDTH)


def _our_step(schedule: Schedule, group: dist.ProcessGroup) -> Callable[[], None]:
    module, (x, y) = _stage_module(), _batch()
    pipeline = Pipeline(schedule, {dist.get_rank(): module}, mse_loss, group=group)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)

    def step() -> None:
        pipeline.step(x, y)
        optimizer.step()
        optimizer.zero_grad()

    return step


def _stock_step(stock: Callable[..., ScheduleGPipe | Schedule1F1B], group: dist.ProcessGroup) -> Callable[[], None]:
    module, (x, y) = _stage_module(), _batch()
    rank = dist.get_rank()
    stage = PipelineStage(module, rank, RANKS, torch.device("cpu"), group=group)
    schedule = stock(stage, n_microbatches=MICROBATCHES, loss_fn=mse_loss)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)

    def step() -> None:
        schedule.step(*[x] * (rank == 0), **{"target": y} if rank == RANKS - 1 else {})
        optimizer.step()
        optimizer.zero_grad()

    return step


# -- bubbles against their formulas ---------------------------------------------------------------------------------


def _bubbles(cluster: Cluster) -> Iterator[Row]:
    """With F = I = W, in units of which a rank works for 3M. A chunk of an interleaved rank takes half of it."""
    work, wait = 3 * MICROBATCHES, RANKS - 1
    for name, schedule, formula in [
        ("GPipe", gpipe(RANKS, MICROBATCHES), wait / (MICROBATCHES + wait)),
        ("1F1B", one_f_one_b(RANKS, MICROBATCHES), wait / (MICROBATCHES + wait)),
        ("interleaved, v = 2", interleaved(RANKS, MICROBATCHES, 2), wait / (2 * MICROBATCHES + wait)),
        ("ZB-H1", zero_bubble_h1(RANKS, MICROBATCHES), wait / (work + wait)),
        ("ZB-H2", zero_bubble_h2(RANKS, MICROBATCHES), wait / (work + wait)),
    ]:
        steps = list(zip(*cluster.run(_spans, schedule).results, strict=True))  # of each the (start, end) of each rank
        whole = [max(end for _, end in ranks) - min(start for start, _ in ranks) for ranks in steps]
        yield _bubble(name, min(whole), formula)
        if name == "ZB-H2":
            yield _bubble(f"{name}, rank 0", min(end - start for (start, end), *_ in steps), 0.0)


def _bubble(what: str, seconds: float, formula: float) -> Row:
    """The best of some steps: sleepers never wake early, and late on a busy machine."""
    measured = 1 - 3 * MICROBATCHES * COST / seconds
    note = f"bubble {measured:.1%}, formula {formula:.1%}"
    return Row(f"bubble of {what}: off its formula by", "points", 100 * abs(measured - formula), 5.0, note=note)


def _spans(schedule: Schedule) -> list[tuple[float, float]]:
    """On a rank: start and end of some steps, on the clock that all processes of a machine share."""
    seconds = COST * RANKS / schedule.stages
    own = range(dist.get_rank(), schedule.stages, RANKS)
    modules = {stage: Emulated(nn.Linear(8, 8), seconds, seconds, seconds) for stage in own}
    pipeline = Pipeline(schedule, modules, mse_loss)
    x, y = torch.randn(MICROBATCHES, 8), torch.randn(MICROBATCHES, 8)
    spans = []
    for _ in range(1 + TRIES):
        dist.barrier()
        start = time.perf_counter()
        pipeline.step(x, y)
        spans.append((start, time.perf_counter()))
    return spans[1:]


# -- a backward in two halves ---------------------------------------------------------------------------------------


def _halves() -> Iterator[Row]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as a rank has it
    linear = nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())])
    conv = nn.Sequential(*[layer for _ in range(3) for layer in (nn.Conv2d(32, 32, 3, padding=1), nn.ReLU())])
    for name, module, x in [
        ("4 linear layers", linear, torch.randn(128, WIDTH)),
        ("3 convolutions", conv, torch.randn(16, 32, 16, 16)),
        ("a transformer block", Block(256, 4), torch.randn(4, 64, 256)),
    ]:
        halves, whole = _backwards(module, x.requires_grad_())
        yield Row(f"input half, then weight half: {name}", "ms", halves * 1e3, 1.1, whole * 1e3, "in one")
    torch.set_num_threads(threads)


def _backwards(module: nn.Module, x: torch.Tensor) -> tuple[float, float]:
    """Median seconds of a backward in halves, and in one, which take turns."""

    def halves(y: torch.Tensor) -> None:
        with input_half() as later:
            torch.autograd.backward(y, gradient)
        later.weight_half()

    gradient = torch.randn_like(module(x))
    times: dict[Callable, list[float]] = {halves: [], lambda y: torch.autograd.backward(y, gradient): []}
    modules = [deferrable(copy.deepcopy(module)), module]
    for _ in range(4 * ROUNDS):
        for one, (backward, taken) in zip(modules, times.items(), strict=True):
            y = one(x)
            start = time.process_time()  # of one thread: whoever else works on the machine counts less
            backward(y)
            taken.append(time.process_time() - start)
    return tuple(statistics.median(taken) for taken in times.values())
