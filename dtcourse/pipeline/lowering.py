"""A schedule with its messages: between two actions of a rank, one exchange with its neighbours.

    action      compute F, B, I or W
    exchange    one `dist.batch_isend_irecv`: sends and receives, posted together

A value is sent as soon as it is made. Its receiver posts the receive at that time, too, though it may need the value
much later: otherwise the sender hangs where a send is a meeting of both (NCCL; gloo's `send`). "At that time" is meant
in the simulation with F = I = W = 1. It puts all actions and messages into one order that every rank keeps to. That is
why nothing can deadlock: the first thing of that order that has not happened yet waits for nobody. It is also why two
messages between the same ranks match without tags (NCCL has none): both ends have them in that order.

A rank may wait for a receive only when an action needs the value, and for its sends at the very end; or for all of an
exchange before it goes on: `check_messages` assumes that, the strictest way.
"""

from __future__ import annotations

from collections import deque
from itertools import groupby
from typing import NamedTuple, TypeAlias

from .actions import Action, Schedule, Value
from .order import ScheduleError
from .simulate import simulate


class Transfer(NamedTuple):
    """A value on its way from one rank to another."""

    value: Value
    source: int
    to: int

    def __str__(self) -> str:
        return f"{self.value}, rank {self.source} to rank {self.to}"


class Exchange(NamedTuple):
    """Messages that a rank posts together, in this order."""

    transfers: tuple[Transfer, ...]

    def sends(self, rank: int) -> tuple[Transfer, ...]:
        """Those that leave `rank`."""
        return tuple(transfer for transfer in self.transfers if transfer.source == rank)

    def receives(self, rank: int) -> tuple[Transfer, ...]:
        """Those that come to `rank`."""
        return tuple(transfer for transfer in self.transfers if transfer.to == rank)


Program: TypeAlias = tuple[Action | Exchange, ...]  # what one rank does, messages included


def lower(schedule: Schedule) -> tuple[Program, ...]:
    """The program of every rank. Raises `ScheduleError` if the schedule cannot run even without messages.

    `lower(one_f_one_b(2, 2))`, with > for sends and < for receives (a activation, g gradient):

    rank 0  F0  >a0  F1  >a1 <g0  B0  <g1  B1
    rank 1  <a0  F0  <a1  B0  >g0  F1  B1  >g1
    """
    lists: list[list[Action | Transfer]] = [[] for _ in schedule.ranks]
    for item in in_one_order(schedule):
        for rank in (item.source, item.to) if isinstance(item, Transfer) else (schedule.rank_of(item.stage),):
            lists[rank].append(item)
    return tuple(map(with_exchanges, lists))


def in_one_order(schedule: Schedule) -> list[Action | Transfer]:
    """All actions and messages as they happen; a message before the actions that start when it is sent."""
    timed: list[tuple[float, int, int, Action | Transfer]] = []
    for rank, spans in enumerate(simulate(schedule).ranks):
        for action, start, end in spans:
            timed.append((start, 1, rank, action))
            value = schedule.makes(action)
            to = None if value is None else schedule.goes_to(value)
            if value is not None and to is not None:
                timed.append((end, 0, rank, Transfer(value, rank, to)))
    return [item for *_, item in sorted(timed, key=lambda entry: entry[:3])]


def with_exchanges(items: list[Action | Transfer]) -> Program:
    """The messages between two actions become one exchange."""
    lines: list[Action | Exchange] = []
    for _, group in groupby(items, key=type):
        together = tuple(group)
        lines += [Exchange(together)] if isinstance(together[0], Transfer) else together
    return tuple(lines)


def check_messages(programs: tuple[Program, ...]) -> None:
    """Raise `ScheduleError` if the programs deadlock where a rank leaves an exchange only when all of it has happened.

    A message happens when sender and receiver have both posted it. What passes here passes with buffered sends, too.
    """
    done = [0] * len(programs)  # lines that each rank has left behind
    posted: list[set[Transfer]] = [set() for _ in programs]
    ready = deque(range(len(programs)))  # ranks that may be able to go on
    while ready:
        rank = ready.popleft()
        for transfer in tuple(posted[rank]):
            other = transfer.to if transfer.source == rank else transfer.source
            if transfer in posted[other]:
                posted[rank].remove(transfer)
                posted[other].remove(transfer)
                ready.append(other)
        if not posted[rank] and done[rank] < len(programs[rank]):
            line = programs[rank][done[rank]]
            posted[rank] = set(line.transfers) if isinstance(line, Exchange) else set()
            done[rank] += 1
            ready.append(rank)
    waiting = [rank for rank, left in enumerate(posted) if left]
    if waiting:
        following = [next_action(programs[rank][done[rank] :]) for rank in waiting]
        told = [
            f"rank {rank}, {f'before {action}' if action else 'after its last action'}: waits for "
            + "; ".join(map(str, sorted(posted[rank])))
            for rank, action in zip(waiting, following, strict=True)
        ]
        raise ScheduleError("as messages, it deadlocks:\n  " + "\n  ".join(told), waiting[0], following[0])


def next_action(lines: Program) -> Action | None:
    """The first action of a piece of a program."""
    return next((line for line in lines if isinstance(line, Action)), None)
