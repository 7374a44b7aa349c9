"""The parameter server: updates against Ray's actors, bytes and times on a slow link against the formulas."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from benchmarks.ray_peer import LR, WORKERS, differentiate, model
from benchmarks.table import Row
from dtcourse import Cluster, Link
from dtcourse.collectives.ring import ring_all_reduce
from dtcourse.network import costs
from dtcourse.parameter_server.policies import Asynchronous, Synchronous
from dtcourse.parameter_server.server import serve
from dtcourse.parameter_server.worker import Worker

SIZE = 1 << 20  # bytes of the model's parameters
STEPS = 20  # of each worker, a turn
TURNS = 16
LINK = Link("5 MB/s", "50 us")  # so slow that a busy machine hardly shows: 210 ms for the model
TRIES = 5

Ends = tuple[float, float]  # of one rank: when it began, and when it ended


def rows() -> Iterator[Row]:
    yield from _against_ray()
    yield from _over_a_link()


# -- updates against Ray ------------------------------------------------------------------------------------------


def _against_ray() -> Iterator[Row]:
    updates, ours, theirs, moved = STEPS * WORKERS, [], [], set()
    with Cluster(1 + WORKERS) as cluster, _ray() as ray:
        for _ in range(1 + TURNS):
            run = cluster.run(_train)
            ours.append(run.results[0] / updates)
            theirs.append(ray(updates) / updates)
            moved.add((run.bytes_received(0), run.bytes_sent(0)))
    # Other work on the machine may disturb three turns out of four; the first one warms up.
    ms, peer = (statistics.quantiles(times[1:], n=4)[0] * 1e3 for times in (ours, theirs))
    what, rate = "an asynchronous update, 1 server, 3 workers, 1 MB", f"{1e3 / ms:.0f} updates a second"
    if peer:
        yield Row(what, "ms", ms, 0.2, peer, "Ray", f"{rate}, {1e3 / peer:.0f} of Ray's")
    else:
        yield Row(what, "ms", ms, None, note=f"{rate}; without Ray")
    for into, out_of in moved:
        for what, bytes_, formula in [("into", into, updates), ("out of", out_of, updates + WORKERS)]:
            name = f"bytes {what} the server meanwhile"
            yield Row(name, "B", bytes_, 1.0, formula * SIZE, "formula", at_least=1.0)


def _train() -> float:
    """On a rank: its seconds."""
    parameters = model()
    dist.barrier()
    start = time.perf_counter()
    if dist.get_rank() == 0:
        serve(parameters, torch.optim.SGD, Asynchronous(), lr=LR)
        return time.perf_counter() - start
    worker = Worker(parameters)
    for _ in range(STEPS):
        worker.pull()
        differentiate(parameters)
        worker.push(samples=1)
    worker.finish()
    return time.perf_counter() - start


@contextmanager
def _ray() -> Iterator[Callable[[int], float]]:
    """Lets Ray make updates, and returns their seconds; 0 seconds, with a word, if there is no Ray."""
    command = [sys.executable, "-m", "benchmarks.ray_peer"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:

            def turn(updates: int) -> float:
                try:
                    process.stdin.write(f"{updates}\n")
                    process.stdin.flush()
                except BrokenPipeError:
                    return 0.0
                return float(process.stdout.readline() or 0)

            yield turn
        finally:
            _, said = process.communicate()  # closes its stdin, so that it ends
        if process.returncode:
            print(f"Ray could not be measured: {said.strip().splitlines()[-1]}")


# -- over a slow link ---------------------------------------------------------------------------------------------


def _over_a_link() -> Iterator[Row]:
    """Root and server take longer with each rank, the ring never takes 2 S b, and P servers take a P-th of one."""
    ring = 0.0
    for world in (2, 4, 8):
        with Cluster(world, link=LINK) as cluster:
            yield _timed(cluster, "gather to a root", costs.gather(world, SIZE, LINK), _whole, _gather)
            yield _timed(cluster, "one server's round", costs.parameter_server(world - 1, [SIZE], LINK), _round, 1)
            formula = costs.ring_all_reduce(world, SIZE // 4, LINK)
            yield (row := _timed(cluster, "ring all-reduce", formula, _whole, ring_all_reduce))
            ring = row.ours
    yield Row("1 MB over 5 MB/s, the last of these", "ms", ring, 1.0, 2e3 * SIZE / LINK.bandwidth, "2 S b")
    for servers in (1, 2, 4):
        with Cluster(servers + 4, link=LINK) as cluster:
            formula = costs.parameter_server(4, [SIZE // servers] * servers, LINK)
            yield _timed(cluster, f"4 workers' round, servers: {servers}", formula, _round, servers)


def _timed(cluster: Cluster, what: str, formula: costs.Cost, job: Callable[..., Ends], *args: object) -> Row:
    """The best of some tries, against the formula: the link is never faster, and a busy machine is slower."""
    seconds = float("inf")
    for _ in range(TRIES):
        ends = cluster.run(job, *args).results
        seconds = min(seconds, max(end for _, end in ends) - min(start for start, _ in ends))
    what = f"1 MB over 5 MB/s, {cluster.world_size} ranks: {what}"
    return Row(what, "ms", seconds * 1e3, 1.1, formula.seconds * 1e3, "formula", at_least=0.9)


def _whole(algorithm: Callable[[torch.Tensor], object]) -> Ends:
    """On a rank: when it began with its tensor, and when it had done its part."""
    tensor = torch.zeros(SIZE // 4)
    dist.barrier()
    start = time.perf_counter()  # one clock for all processes of a machine
    algorithm(tensor)
    return start, time.perf_counter()


def _gather(tensor: torch.Tensor) -> None:
    if dist.get_rank():
        dist.send(tensor, 0)
        return
    for work in [dist.irecv(torch.empty_like(tensor), rank) for rank in range(1, dist.get_world_size())]:
        work.wait()


def _round(servers: int) -> Ends:
    """On a rank: from a worker's push until it has the updated parameters; of a server nothing that would count."""
    parameters, workers = model(), dist.new_group(range(servers, dist.get_world_size()))
    if dist.get_rank() < servers:
        serve(parameters, torch.optim.SGD, Synchronous(), servers=servers, lr=LR)
        return float("inf"), 0.0
    worker = Worker(parameters, servers=servers)
    worker.pull()
    differentiate(parameters)
    dist.barrier(workers)
    start = time.perf_counter()
    worker.push(samples=1)
    worker.pull()
    end = time.perf_counter()
    worker.finish()
    return start, end
