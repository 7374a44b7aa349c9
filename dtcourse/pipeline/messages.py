"""The messages of one batch on one rank: posted as the program says, waited for as late as can be.

A receive is waited for when an action needs the value. A send is looked after when it is known to be over: messages of
a pair of ranks arrive in the order in which both ends post them, so when one from rank r has come, all that went to r
before it have, too. Then their tensors can go, and the wait takes no time.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import NamedTuple

import torch
import torch.distributed as dist

from .actions import Value
from .boundary import Boundaries, Description
from .lowering import Exchange

Tensors = tuple[torch.Tensor, ...]


class Arrival(NamedTuple):
    """A value that has been asked for."""

    tensors: Tensors
    works: list[dist.Work]
    source: int
    sent_before: int  # how many sends to `source` went before


class Sent(NamedTuple):
    work: dist.Work
    tensor: torch.Tensor  # must live until it has arrived


class Messages:
    """Values that the actions of this rank make and need, whether they travel or stay here."""

    def __init__(self, boundaries: Boundaries, group: dist.ProcessGroup) -> None:
        self._boundaries, self._group = boundaries, group
        self._rank, self._device = dist.get_rank(group), boundaries.device
        self._made: dict[Value, Tensors] = {}
        self._arriving: dict[Value, Arrival] = {}
        self._sent: defaultdict[int, deque[Sent]] = defaultdict(deque)  # to each rank, oldest first
        self._over: defaultdict[int, int] = defaultdict(int)  # how many of the sends to each rank are over

    def expected(self, value: Value) -> tuple[Description, ...]:
        """What the others think that a value will be."""
        return self._boundaries.of(value)

    def put(self, value: Value, tensors: Tensors) -> None:
        """What an action has made."""
        self._made[value] = tensors

    def post(self, exchange: Exchange) -> None:
        """Begin to send what was put, and to receive what is taken later; all in one batch."""
        operations: list[dist.P2POp] = []
        places: list[tuple[int, Tensors]] = []  # where the operations of a value begin, and its tensors
        for value, source, to in exchange.transfers:
            if source == self._rank:
                tensors = tuple(tensor.contiguous() for tensor in self._made.pop(value))
            else:
                tensors = tuple(one.empty(self._device) for one in self._boundaries.of(value))
            places.append((len(operations), tensors))
            do, peer = (dist.isend, to) if source == self._rank else (dist.irecv, source)
            operations += [dist.P2POp(do, tensor, group=self._group, group_peer=peer) for tensor in tensors]
        works = dist.batch_isend_irecv(operations) if operations else []
        if len(works) < len(operations):  # of all together, as on NCCL
            works = works * len(operations)
        for (first, tensors), (value, source, to) in zip(places, exchange.transfers, strict=True):
            theirs = works[first : first + len(tensors)]
            if source == self._rank:
                self._sent[to].extend(map(Sent, theirs, tensors))
            else:
                before = self._over[source] + len(self._sent[source])
                self._arriving[value] = Arrival(tensors, theirs, source, before)

    def take(self, value: Value) -> Tensors:
        """A value that an action needs. Waits until it is there."""
        if value in self._made:
            tensors = self._made.pop(value)
        else:
            tensors, works, source, sent_before = self._arriving.pop(value)
            for work in works:
                work.wait()
            self._look_after(source, sent_before if works else 0)
        if value.name == "activation":
            for tensor, one in zip(tensors, self._boundaries.of(value), strict=True):
                tensor.requires_grad_(one.requires_grad)
        return tensors

    def finish(self) -> None:
        """Wait for all that was sent."""
        for to, sent in self._sent.items():
            self._look_after(to, self._over[to] + len(sent))

    def _look_after(self, to: int, count: int) -> None:
        """The first `count` sends to a rank are over."""
        while self._over[to] < count:
            self._sent[to].popleft().work.wait()
            self._over[to] += 1
