"""Every collective on an emulated link: measured seconds, from when the last rank has begun, against predicted ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist

from benchmarks.table import Row
from dtcourse import Cluster, Link, Network
from dtcourse.collectives.halving_doubling import halving_doubling_all_reduce
from dtcourse.collectives.hierarchical import HierarchicalAllReduce
from dtcourse.collectives.ring import ring_all_gather, ring_all_reduce
from dtcourse.collectives.ring_broadcast import ring_broadcast
from dtcourse.collectives.root import root_all_reduce
from dtcourse.collectives.tree import tree_all_gather, tree_all_reduce, tree_broadcast
from dtcourse.network.predict import predict

LINK = Link("1 Gbit/s", "50 us")
NODES = Network(inside=Link("10 Gbit/s", "50 us"), across=LINK, ranks_per_node=2)
TRIES = 30

CALLS: dict[str, Callable[[torch.Tensor], None]] = {
    "ring": ring_all_reduce,
    "root": root_all_reduce,
    "tree": tree_all_reduce,
    "halving_doubling": halving_doubling_all_reduce,
    "ring_broadcast": ring_broadcast,
    "tree_broadcast": tree_broadcast,
    "ring_all_gather": ring_all_gather,
    "tree_all_gather": tree_all_gather,
}
SOME = ["ring", "tree", "halving_doubling"]


def rows() -> Iterator[Row]:
    yield from _over("1 Gbit/s", 4, LINK, list(CALLS), (0.005, 0.02))
    yield from _over("1 Gbit/s", 3, LINK, SOME, (0.005, 0.02))
    yield from _over("1 Gbit/s", 8, LINK, SOME, (0.05,))  # eight on two cores: a round takes them a millisecond
    yield from _over("2 a node", 4, NODES, ["hierarchical", *SOME], (0.005, 0.02))


def _over(
    what: str, world: int, network: Link | Network, names: list[str], targets: tuple[float, ...]
) -> Iterator[Row]:
    """`targets`: predicted seconds, at least. Of some tries the shortest one, as a busy machine is slower."""
    jobs = [(name, _size(name, world, network, target)) for name in names for target in targets]
    with Cluster(world, link=network) as cluster:
        tries = zip(*cluster.run(_tries, jobs).results, strict=True)  # of each the (start, end) of each rank
        spans = [_span(*zip(*ranks, strict=True)) for ranks in tries]
    for number, (name, size) in enumerate(jobs):
        _, seconds = min(spans[number :: len(jobs)])
        formula = predict(name, world, size, network).seconds
        row = f"{world} ranks, {what}: {name}, {size / 1e6:.2g} MB"
        yield Row(row, "ms", seconds * 1e3, 1.15, formula * 1e3, "predicted", at_least=0.85)


def _span(starts: tuple[float, ...], ends: tuple[float, ...]) -> tuple[float, float]:
    """Seconds from when the first rank began until the last one was done, and from when the last one began."""
    return max(ends) - min(starts), max(ends) - max(starts)


def _size(name: str, world: int, network: Link | Network, seconds: float) -> int:
    """So many bytes that it should take so long, and hardly longer."""
    size = 1024
    while predict(name, world, size, network).seconds < seconds:
        size += size // 64 * 4
    return size


def _tries(jobs: list[tuple[str, int]]) -> list[tuple[float, float]]:
    """On a rank: when it began and when it had done its part, on the clock that all processes of a machine share.

    The jobs take turns, so that a busy moment of the machine hits all of them.
    """
    calls = {**CALLS, "hierarchical": HierarchicalAllReduce(2)} if ("hierarchical" in dict(jobs)) else CALLS
    tensors = [torch.zeros(size // 4) for _, size in jobs]
    spans = []
    for (name, _), tensor in list(zip(jobs, tensors, strict=True)) * TRIES:
        dist.barrier()
        start = time.perf_counter()
        calls[name](tensor)
        spans.append((start, time.perf_counter()))
    return spans
