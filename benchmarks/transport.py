"""All-reduce over our own transport, against gloo, MPICH, and the bare adds and copies of the same bytes."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist

from benchmarks.table import Row
from dtcourse import Cluster
from dtcourse.collectives.ring import ring_all_reduce

SIZES = {"64 KB": 1 << 16, "1 MB": 1 << 20, "16 MB": 1 << 24, "64 MB": 1 << 26}
PIECE = 1 << 16  # elements added at a time, as the transport does


def rows() -> Iterator[Row]:
    gloo = {"64 KB": 0.25, "1 MB": 0.25, "16 MB": 0.5, "64 MB": 0.5}
    yield from _against_others(4, gloo, {"16 MB": 0.7, "64 MB": 0.7})
    yield from _against_others(2, dict.fromkeys(SIZES, 0.6), {})


def _against_others(world: int, gloo_limits: dict[str, float], mpich_limits: dict[str, float]) -> Iterator[Row]:
    mpich = _mpich(world)
    with Cluster(world) as cluster:
        for name, size in SIZES.items():
            run = cluster.run(_seconds, size, rounds=max(7, min(40, (64 << 20) // size)))
            times = {way: max(r[way] for r in run.results) * 1e3 for way in run.results[0]}
            ours, what = times["ours"], f"{name} all-reduce, {world} ranks"
            yield Row(what, "ms", ours, gloo_limits[name], times["gloo"], "gloo")
            if name in mpich:
                yield Row(f"{what},", "ms", ours, mpich_limits.get(name), mpich[name], "MPICH")
            yield Row(f"{what},", "ms", ours, None, times["bare"], "adds and copies")
            if world == 4 and size >= 1 << 20:
                yield Row(f"{name}, a ring in Python, 4 ranks", "ms", times["ring"], 0.8, times["gloo"], "gloo")


def _seconds(size: int, rounds: int) -> dict[str, float]:
    """On a rank: median seconds of each way; they take turns."""
    gloo, tensor = dist.new_group(backend="gloo"), torch.zeros(size // 4)
    ways = {
        "ours": lambda: dist.all_reduce(tensor),
        "gloo": lambda: dist.all_reduce(tensor, group=gloo),
        "ring": lambda: ring_all_reduce(tensor),
        "bare": lambda: _bare(tensor, dist.get_world_size()),
    }
    taken: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, reduce in ways.items():
            dist.barrier()
            start = time.perf_counter()
            reduce()
            taken[way].append(time.perf_counter() - start)
    return {way: statistics.median(times[1:]) for way, times in taken.items()}


def _bare(tensor: torch.Tensor, world: int) -> None:
    """The memory traffic of an all-reduce, with nothing to wait for: add N-1 chunks, copy N-1 chunks."""
    chunks = tensor.tensor_split(world)
    staging = torch.empty(min(PIECE, chunks[0].numel()))
    for chunk in chunks[1:]:
        for piece in chunk.split(PIECE):
            staging[: piece.numel()].copy_(piece)
            chunks[0][: piece.numel()].add_(staging[: piece.numel()])
    for chunk in chunks[1:]:
        chunk.copy_(chunks[0][: chunk.numel()])


_MPI = """
import statistics, sys, time
import numpy
from mpi4py import MPI
world = MPI.COMM_WORLD
for size in map(int, sys.argv[1:]):
    x, times = numpy.zeros(size // 4, dtype=numpy.float32), []
    for _ in range(max(7, min(40, (64 << 20) // size))):
        world.Barrier()
        start = time.perf_counter()
        world.Allreduce(MPI.IN_PLACE, x)
        times.append(time.perf_counter() - start)
    slowest = world.reduce(statistics.median(times[1:]), op=MPI.MAX)
    if world.rank == 0:
        print(slowest * 1e3)
"""


def _mpich(world: int) -> dict[str, float]:
    """Milliseconds by size; empty, with a word, if there is no MPICH."""
    mpiexec = [f"{sys.prefix}/bin/mpiexec", "-n", str(world), sys.executable, "-c", _MPI, *map(str, SIZES.values())]
    try:
        done = subprocess.run(mpiexec, capture_output=True, text=True, check=True, timeout=300)
    except (OSError, subprocess.SubprocessError) as problem:
        print(f"MPICH could not be measured: {problem}")
        return {}
    return dict(zip(SIZES, map(float, done.stdout.split()), strict=True))
