"""Every way to train on several ranks: what the tests run in a cluster, and in plain processes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from trained_models import Model, loss_of, sgd

from dtcourse.collectives.halving_doubling import halving_doubling_all_reduce
from dtcourse.collectives.hierarchical import HierarchicalAllReduce
from dtcourse.collectives.ring import ring_all_gather, ring_all_reduce, ring_reduce_scatter
from dtcourse.collectives.root import root_all_reduce
from dtcourse.collectives.tree import tree_all_reduce
from dtcourse.data_parallel.buckets import Reducer
from dtcourse.data_parallel.ddp_hook import all_reduce_hook
from dtcourse.data_parallel.fully_sharded import FullySharded
from dtcourse.data_parallel.optimizer import DistributedOptimizer
from dtcourse.data_parallel.replicas import average_gradients, broadcast_parameters
from dtcourse.data_parallel.sharded import Sharded
from dtcourse.data_parallel.shares import share_of

ALL_REDUCES = {
    "root": root_all_reduce, "ring": ring_all_reduce, "tree": tree_all_reduce,
    "halving_doubling": halving_doubling_all_reduce,
}  # fmt: skip
Batches = list[torch.Tensor]  # of one rank, one for each step


class Counted:
    """A collective that remembers how many elements it was given each time."""

    def __init__(self, collective: Callable[..., Any]) -> None:
        self.collective, self.elements = collective, []

    def __call__(self, tensor: torch.Tensor, group: dist.ProcessGroup | None = None) -> None:
        self.elements.append(tensor.numel())
        self.collective(tensor, group=group)


# -- the ways ----------------------------------------------------------------------------------------------------------


def plain(model: nn.Module, own: Batches, all_reduce: Counted) -> None:
    optimizer = sgd(model.parameters())
    for batch in own:
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        average_gradients(model.parameters(), all_reduce, share_of(len(batch)))
        optimizer.step()


def buckets(model: nn.Module, own: Batches, all_reduce: Counted, overlap: bool = True) -> None:
    optimizer = sgd(model.parameters())
    reducer = Reducer(model, all_reduce, bucket_mib=500 / 2**20, first_bucket_mib=100 / 2**20, overlap=overlap)
    assert len(reducer.buckets) > 3
    for batch in own:
        optimizer.zero_grad()
        with reducer.step(share_of(len(batch))):
            loss_of(model, batch).backward()
        optimizer.step()


def hook(model: nn.Module, own: Batches, all_reduce: Counted) -> None:
    """Under stock DistributedDataParallel, in two buckets."""
    optimizer = sgd(model.parameters())
    parallel = DistributedDataParallel(model, find_unused_parameters=True, bucket_cap_mb=500 / 2**20)
    averaging = all_reduce_hook(all_reduce)
    parallel.register_comm_hook(None, averaging)
    for batch in own:
        optimizer.zero_grad()
        averaging.share = share_of(len(batch))
        loss_of(parallel, batch).backward()
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


WAYS = {
    "plain": Way(plain, with_flags),
    "buckets": Way(buckets, with_flags),
    "buckets without overlap": Way(partial(buckets, overlap=False), with_flags),
    "hook under DistributedDataParallel": Way(hook, everything),
    "DistributedOptimizer": Way(horovod, used),
}


def replica() -> Model:
    """Ranks begin with weights of their own, until the broadcast."""
    model = Model()
    for parameter in model.parameters():
        parameter.data += dist.get_rank()
    broadcast_parameters(model)
    return model


def job(train: Callable[..., None], own: Batches, algorithm: str, ranks_per_node: int) -> tuple[dict, list[int]]:
    """The weights afterwards, and what was all-reduced."""
    model, all_reduce = replica(), Counted(ALL_REDUCES.get(algorithm) or HierarchicalAllReduce(ranks_per_node))
    train(model, own, all_reduce)
    return model.state_dict(), all_reduce.elements


def sharded_job(stage: int, own: Batches) -> tuple[dict, list[int], list[int]]:
    """The weights afterwards, and what was reduce-scattered and all-gathered. `rarely` is called by some ranks only."""
    model, collectives = replica(), (Counted(ring_reduce_scatter), Counted(ring_all_gather))
    options = dict(zip(("reduce_scatter", "all_gather"), collectives, strict=True))
    if stage < 3:
        sharded = Sharded(model, sgd, stage=stage, **options)
    else:
        sharded = FullySharded(model, sgd, units=[model.hidden, model.last], **options)
    for batch in own:
        with sharded.step(share_of(len(batch))):
            loss_of(model, batch).backward()
    elements = [list(one.elements) for one in collectives]
    return sharded.state_dict()["module"], *elements
