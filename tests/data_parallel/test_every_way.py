"""Every way to train on several ranks gives the weights of one process, and sends the bytes of its formula.

20 steps on worlds of 1 to 5 ranks, of a model with tied weights, a branch that some steps use and one that none does,
on batches of unequal shares, by SGD with momentum and weight decay.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import torch
from every_way import ALL_REDUCES, WAYS, everything, job, sharded_job, used
from trained_models import alone, batches, difference

from dtcourse import Link, Network, per_rank
from dtcourse.network.predict import predict

WORLDS = range(1, 6)
CLOSE = 1e-10
LINK = Link("1 Gbit/s", "50 us")


@cache
def one_process(world: int) -> dict[str, torch.Tensor]:
    return alone(batches(world))


def of_each_rank(steps: list[list[torch.Tensor]]):
    """Their batches, step by step."""
    return per_rank([list(own) for own in zip(*steps, strict=True)])


def nodes(algorithm: str, world: int) -> list[int]:
    """How many ranks a node may have."""
    return [n for n in range(1, world + 1) if world % n == 0] if algorithm == "hierarchical" else [1]


PAIRS = [("buckets", algorithm) for algorithm in ALL_REDUCES]  # the ring for all ways, and what brings its own groups
PAIRS += [(way, algorithm) for way in WAYS for algorithm in ("ring", "hierarchical") if (way, algorithm) not in PAIRS]


@pytest.mark.parametrize(("way", "algorithm"), PAIRS)
def test_the_weights_of_one_process_and_the_bytes_of_the_formula(cluster_of, way, algorithm):
    train, elements = WAYS[way]
    for world in WORLDS:
        steps = batches(world)
        for ranks_per_node in nodes(algorithm, world):
            run = cluster_of(world).run(job, train, of_each_rank(steps), algorithm, ranks_per_node)
            assert all(difference(weights, one_process(world)) < CLOSE for weights, _ in run.results)
            calls = run.results[0][1]
            assert all(counted == calls for _, counted in run.results) and sum(calls) == sum(map(elements, steps))
            network = Network(LINK, LINK, ranks_per_node) if algorithm == "hierarchical" else LINK
            costs = [predict(algorithm, world, 8 * n, network, 8).sent for n in calls]
            assert [run.bytes_sent(rank) for rank in range(world)] == [sum(sent) for sent in zip(*costs, strict=True)]


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_sharded_the_same_weights_and_the_bytes_of_the_formula(cluster_of, stage):
    """Rank j sends all chunks but j+1 in a reduce-scatter, and all but j+2 in an all-gather."""
    for world in WORLDS:
        steps = batches(world)
        run = cluster_of(world).run(sharded_job, stage, of_each_rank(steps))
        assert all(difference(weights, one_process(world)) < CLOSE for weights, _, _ in run.results)
        _, scattered, gathered = run.results[0]
        assert all(counted == [scattered, gathered] for _, *counted in run.results)
        assert sum(scattered) == sum(map(everything, steps))
        assert sum(gathered) == (2 * sum(scattered) if stage == 3 else sum(map(used, steps)))
        sent = [sum(n - chunk(n, j + 1, world) for n in scattered) for j in range(world)]
        sent = [each + sum(n - chunk(n, j + 2, world) for n in gathered) for j, each in enumerate(sent)]
        assert [run.bytes_sent(rank) for rank in range(world)] == [8 * each for each in sent]


def chunk(elements: int, number: int, world: int) -> int:
    """The elements of a chunk; the first (elements mod world) are one longer."""
    return elements // world + (number % world < elements % world)


def test_every_way_in_plain_processes(tmp_path):
    """As torchrun starts them, but over a file and loopback."""
    script = Path(__file__).with_name("data_parallel_without_a_cluster.py")
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo"}
    command = [sys.executable, script]
    ranks = [subprocess.Popen([*command, str(r), tmp_path / "store"], env=environment) for r in range(3)]
    assert [rank.wait() for rank in ranks] == [0, 0, 0]
