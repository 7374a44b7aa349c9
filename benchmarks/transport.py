"""All-reduce over our own transport, against gloo, MPICH, and the bare adds and copies of the same bytes."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist

from benchmarks.table import Row
from dtcourse import Cluster
from dtcourse.backends.shared_memory.meetings import PIECE
from solutions.ring import ring_all_reduce

SIZES = {"64 KB": 1 << 16, "1 MB": 1 << 20, "16 MB": 1 << 24, "64 MB": 1 << 26}
TURNS = 10  # all ways of reducing take turns this often, each for a few rounds: a busy moment hits them all

Rounds = list[tuple[float, float]]  # of one rank: when it entered each, and when it left


def rows() -> Iterator[Row]:
    gloo = {"64 KB": 0.25, "1 MB": 0.25, "16 MB": 0.5, "64 MB": 0.5}
    yield from _against_others(4, gloo, {"16 MB": 0.7, "64 MB": 0.7})
    yield from _against_others(2, dict.fromkeys(SIZES, 0.6), {})


def _against_others(world: int, gloo_limits: dict[str, float], mpich_limits: dict[str, float]) -> Iterator[Row]:
    with Cluster(world) as cluster, _mpich(world) as mpich:
        for name, size in SIZES.items():
            times = _milliseconds(cluster, mpich, size)
            ours, what = times["ours"], f"{name} all-reduce, {world} ranks"
            yield Row(what, "ms", ours, gloo_limits[name], times["gloo"], "gloo")
            if "mpich" in times:
                yield Row(f"{what},", "ms", ours, mpich_limits.get(name), times["mpich"], "MPICH")
            yield Row(f"{what},", "ms", ours, None, times["bare"], "adds and copies")
            if world == 4 and size >= 1 << 20:
                yield Row(f"{name}, the reader's own ring, 4 ranks", "ms", times["ring"], 0.8, times["gloo"], "gloo")


def _milliseconds(cluster: Cluster, mpich: Callable[[int, int], list[Rounds]], size: int) -> dict[str, float]:
    """The lower quartile of the rounds of each way: other work on the machine may disturb three out of four."""
    taken: dict[str, list[float]] = {}
    rounds = max(4, min(20, (32 << 20) // size))
    for _ in range(TURNS):
        results = cluster.run(_rounds, size, rounds).results
        ways = {way: [result[way] for result in results] for way in results[0]} | {"mpich": mpich(size, rounds)}
        for way, ranks in ways.items():
            for ends in list(zip(*ranks, strict=True))[1:]:  # the first one warms up
                taken.setdefault(way, []).append(_span(ends, together=way != "bare"))
    return {way: statistics.quantiles(spans, n=4)[0] * 1e3 for way, spans in taken.items()}


def _span(ends: Sequence[tuple[float, float]], together: bool) -> float:
    """Seconds of a round until the last rank leaves.

    A collective counts from when the last one enters, since nobody can leave before; work that each does by itself
    counts from when the first one enters, since with fewer cores than ranks it is done one after the other.
    """
    entered = [start for start, _ in ends]
    return max(end for _, end in ends) - (max(entered) if together else min(entered))


def _rounds(size: int, rounds: int) -> dict[str, Rounds]:
    """On a rank: all ways but MPICH."""
    gloo, tensor = dist.new_group(backend="gloo"), torch.zeros(size // 4)
    ways = {
        "ours": lambda: dist.all_reduce(tensor),
        "gloo": lambda: dist.all_reduce(tensor, group=gloo),
        "ring": lambda: ring_all_reduce(tensor),
        "bare": lambda: _bare(tensor, dist.get_world_size()),
    }
    taken: dict[str, Rounds] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, reduce in ways.items():
            dist.barrier()
            start = time.perf_counter()  # one clock for all processes of a machine
            reduce()
            taken[way].append((start, time.perf_counter()))
    return taken


def _bare(tensor: torch.Tensor, world: int) -> None:
    """The memory traffic of an all-reduce, with nothing to wait for: add N-1 chunks, copy N-1 chunks."""
    chunks = tensor.tensor_split(world)
    length = PIECE // tensor.element_size()  # the piece that the transport adds at a time
    staging = torch.empty(min(length, chunks[0].numel()))
    for chunk in chunks[1:]:
        for piece, total in zip(chunk.split(length), chunks[0].split(length), strict=True):
            total.add_(staging[: piece.numel()].copy_(piece))
    for chunk in chunks[1:]:
        chunk.copy_(chunks[0][: chunk.numel()])


_MPI = """
import json, os, sys, time
import numpy
from mpi4py import MPI
world = MPI.COMM_WORLD
orders = os.open(sys.argv[1], os.O_RDONLY)
while order := os.read(orders, 16):
    size, rounds = map(int, order.split())
    x, taken = numpy.zeros(size // 4, dtype=numpy.float32), []
    for _ in range(rounds):
        world.Barrier()
        start = time.perf_counter()
        world.Allreduce(MPI.IN_PLACE, x)
        taken.append((start, time.perf_counter()))
    every = world.gather(taken)
    if world.rank == 0:
        print(json.dumps(every), flush=True)
"""


@contextmanager
def _mpich(world: int) -> Iterator[Callable[[int, int], list[Rounds]]]:
    """Lets MPICH's ranks do rounds; no rounds, with a word, if there is no MPICH.

    Between its turns a rank reads from a pipe, where it sleeps: in a call of MPI it would keep a core busy.
    """
    with tempfile.TemporaryDirectory() as folder:
        pipe = os.path.join(folder, "orders")
        os.mkfifo(pipe)
        orders = os.open(pipe, os.O_RDWR)  # O_WRONLY would wait here for a reader, who may never come
        mpiexec = [f"{sys.prefix}/bin/mpiexec", "-n", str(world), sys.executable, "-c", _MPI, pipe]
        try:
            process = subprocess.Popen(mpiexec, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        except OSError as problem:
            print(f"MPICH could not be measured: {problem}")
            yield lambda size, rounds: []
            return

        def turn(size: int, rounds: int) -> list[Rounds]:
            os.write(orders, f"{size:>12} {rounds:>3}".encode() * world)  # each rank takes one
            return json.loads(process.stdout.readline() or "[]")

        if not turn(4, 1):
            print(f"MPICH could not be measured: {process.stderr.read()}")
        yield turn
        os.close(orders)  # so that the ranks end
        process.communicate()
