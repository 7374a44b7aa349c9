"""The bytes that each rank really sends and receives are those predicted, for every algorithm."""

import pytest
import torch
import torch.distributed as dist

from dtcourse import Cluster, Link, Network, region
from dtcourse.collectives.halving_doubling import halving_doubling_all_reduce
from dtcourse.collectives.hierarchical import HierarchicalAllReduce
from dtcourse.collectives.ring import ring_all_gather, ring_all_reduce
from dtcourse.collectives.ring_broadcast import ring_broadcast
from dtcourse.collectives.root import root_all_reduce
from dtcourse.collectives.tree import tree_all_gather, tree_all_reduce, tree_broadcast
from dtcourse.network.predict import ALGORITHMS, predict

LINK = Link("1 Gbit/s", "50 us")
WORLDS = range(1, 7)
LENGTHS = (5, 1001)  # elements of 8 bytes
CALLS = {
    "ring": ring_all_reduce,
    "root": root_all_reduce,
    "tree": tree_all_reduce,
    "halving_doubling": halving_doubling_all_reduce,
    "ring_broadcast": lambda x, group: ring_broadcast(x, 0, group),
    "tree_broadcast": lambda x, group: tree_broadcast(x, 0, group),
    "ring_all_gather": ring_all_gather,
    "tree_all_gather": tree_all_gather,
}


def everything(world):
    """All algorithms, in a group of the first ranks, on tensors of all lengths."""
    group = dist.new_group(range(world))
    if dist.get_rank() >= world:
        return
    nodes = {f"hierarchical {each}": HierarchicalAllReduce(each, group) for each in divisors(world)}
    for name, function in {**CALLS, **nodes}.items():
        for length in LENGTHS:
            with region("case", algorithm=name, world=world, length=length):
                function(torch.ones(length, dtype=torch.int64), group)


def divisors(world):
    return [each for each in range(1, world + 1) if world % each == 0]


@pytest.fixture(scope="module")
def moved():
    """(algorithm, world, length, rank) -> bytes sent, bytes received."""
    found = {}
    with Cluster(max(WORLDS), backend="shared_memory") as cluster:
        for world in WORLDS:
            run = cluster.run(everything, world)
            for case in run.regions("case"):
                found[where(case)] = [0, 0]
            for way, events in enumerate((run.messages(), run.receives())):
                for event in events:
                    found[where(event)][way] += event.bytes
    return found


def where(event):
    return event.labels["algorithm"], event.labels["world"], event.labels["length"], event.rank


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_bytes(moved, algorithm):
    for world in WORLDS:
        for each in divisors(world) if algorithm == "hierarchical" else [1]:
            name = f"{algorithm} {each}" if algorithm == "hierarchical" else algorithm
            network = Network(LINK, LINK, each) if algorithm == "hierarchical" else LINK
            for length in LENGTHS:
                cost = predict(algorithm, world, 8 * length, network, element_size=8)
                seen = [moved[name, world, length, rank] for rank in range(world)]
                assert [list(both) for both in zip(cost.sent, cost.received, strict=True)] == seen, (
                    name,
                    world,
                    length,
                )
