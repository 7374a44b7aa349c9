"""Every way to train on several ranks gives the weights of one process, and sends the bytes of its formula.

20 steps on worlds of 1 to 5 ranks, of a model with tied weights, a branch that some steps use and one that none does,
on batches of unequal shares, by SGD with momentum and weight decay.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import nn
from trained_models import Model, alone, batches, difference, loss_of, sgd

from dtcourse import Link, Network, per_rank
from dtcourse.collectives.halving_doubling import halving_doubling_all_reduce
from dtcourse.collectives.hierarchical import HierarchicalAllReduce
from dtcourse.collectives.ring import ring_all_reduce
from dtcourse.collectives.root import root_all_reduce
from dtcourse.collectives.tree import tree_all_reduce
from dtcourse.data_parallel.optimizer import DistributedOptimizer
from dtcourse.data_parallel.replicas import average_gradients, broadcast_parameters
from dtcourse.data_parallel.shares import share_of
from dtcourse.network.predict import predict

WORLDS = range(1, 6)
CLOSE = 1e-10
LINK = Link("1 Gbit/s", "50 us")
ALL_REDUCES = {
    "root": root_all_reduce, "ring": ring_all_reduce, "tree": tree_all_reduce,
    "halving_doubling": halving_doubling_all_reduce,
}  # fmt: skip
Batches = list[torch.Tensor]  # of one rank, one for each step


class Counted:
    """An all-reduce that remembers how many elements it was given each time."""

    def __init__(self, all_reduce: Callable[..., Any]) -> None:
        self.all_reduce, self.elements = all_reduce, []

    def __call__(self, tensor: torch.Tensor, group: dist.ProcessGroup | None = None) -> None:
        self.elements.append(tensor.numel())
        self.all_reduce(tensor, group=group)


# -- the ways ----------------------------------------------------------------------------------------------------------


def plain(model: nn.Module, own: Batches, all_reduce: Counted) -> None:
    optimizer = sgd(model.parameters())
    for batch in own:
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        average_gradients(model.parameters(), all_reduce, share_of(len(batch)))
        optimizer.step()


def horovod(model: nn.Module, own: Batches, all_reduce: Counted) -> None:
    named = model.named_parameters()
    optimizer = DistributedOptimizer(sgd(model.parameters()), named, all_reduce, fusion_mib=500 / 2**20, cycle_ms=0)
    for batch in own:
        optimizer.zero_grad()
        optimizer.share = share_of(len(batch))
        loss_of(model, batch).backward()
        optimizer.step()


def size(model: nn.Module, names: tuple[str, ...] = ("",)) -> int:
    """Elements of the parameters whose names begin so."""
    return sum(p.numel() for name, p in model.named_parameters() if name.startswith(names))


def everything(step: Batches) -> int:
    return size(Model())


def with_flags(step: Batches) -> int:
    """And which parameters were used, a number each."""
    return size(Model()) + len(list(Model().parameters()))


def used(step: Batches) -> int:
    """What somebody uses."""
    rarely = any((batch[:, 0] == 0).any() for batch in step)
    return size(Model()) - size(Model(), ("never",)) - (0 if rarely else size(Model(), ("rarely",)))


class Way(NamedTuple):
    """`train(model, own batches, all_reduce)`, and how many elements it all-reduces in a step."""

    train: Callable[[nn.Module, Batches, Counted], None]
    elements: Callable[[Batches], int]


WAYS = {"plain": Way(plain, with_flags), "horovod": Way(horovod, used)}


def job(train: Callable[..., None], own: Batches, algorithm: str, ranks_per_node: int) -> tuple[dict, list[int]]:
    """The weights afterwards, and what was all-reduced. Ranks begin with weights of their own, until the broadcast."""
    model = Model()
    for parameter in model.parameters():
        parameter.data += dist.get_rank()
    broadcast_parameters(model)
    all_reduce = Counted(ALL_REDUCES.get(algorithm) or HierarchicalAllReduce(ranks_per_node))
    train(model, own, all_reduce)
    return model.state_dict(), all_reduce.elements


@cache
def one_process(world: int) -> dict[str, torch.Tensor]:
    return alone(batches(world))


def nodes(algorithm: str, world: int) -> list[int]:
    """How many ranks a node may have."""
    return [n for n in range(1, world + 1) if world % n == 0] if algorithm == "hierarchical" else [1]


@pytest.mark.parametrize("algorithm", [*ALL_REDUCES, "hierarchical"])
@pytest.mark.parametrize("way", WAYS)
def test_the_weights_of_one_process_and_the_bytes_of_the_formula(cluster_of, way, algorithm):
    train, elements = WAYS[way]
    for world in WORLDS:
        steps = batches(world)
        for ranks_per_node in nodes(algorithm, world):
            own = per_rank(list(map(list, zip(*steps, strict=True))))
            run = cluster_of(world).run(job, train, own, algorithm, ranks_per_node)
            assert all(difference(weights, one_process(world)) < CLOSE for weights, _ in run.results)
            calls = run.results[0][1]
            assert all(counted == calls for _, counted in run.results) and sum(calls) == sum(map(elements, steps))
            network = Network(LINK, LINK, ranks_per_node) if algorithm == "hierarchical" else LINK
            costs = [predict(algorithm, world, 8 * n, network, 8).sent for n in calls]
            assert [run.bytes_sent(rank) for rank in range(world)] == [sum(sent) for sent in zip(*costs, strict=True)]
