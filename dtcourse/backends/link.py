"""The emulated link: when each message would have left and arrived, had the ranks' ports been that slow.

The bytes themselves move at full speed. Whichever rank posts the last side of an operation takes the ports for it, at
that moment, and writes into the rows of all sides when their part is over (Column.DUE); a rank then waits until that
time has come. The ports lie in a file that all ranks have mapped. A lock on it, which the system takes back from a rank
that is killed, keeps the order: first come first served.

A rank that is woken late would come late to its next operation, and one with many rounds would take longer than it
should. So each rank has a clock of its own (`Clock`), which stands still while a message is posted or waited for: what
the machine and the recorder take longer than the link, the rank is behind. What it posts counts as posted at the time
of its own clock. Its next sleep takes that back, and a barrier puts it right.

Control traffic, as in `region("control")`, takes the latency alone; barriers and collectives of objects take nothing.

A collective begins when its last rank has come, and takes the ports for all its messages (`network/plans.py`) at once.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from dtcourse.backends.ledger import Posting
from dtcourse.backends.recording import now
from dtcourse.backends.tape import Column, Dues, Files, Kind, anonymous_file
from dtcourse.network import Link, Network, plans
from dtcourse.network.ports import Passage, Ports

_NEARLY = 150_000  # ns; a sleep ends late by about as much
MOST_BEHIND = 5_000_000  # ns


def create_ports(world: int) -> int:
    """A descriptor of the file with the ports of all ranks."""
    ports = anonymous_file()
    free_ports(ports, world)
    return ports


def free_ports(ports: int, world: int) -> None:
    """All ports are free: a run begins."""
    os.pwrite(ports, bytes(_size(world)), 0)


def _size(world: int) -> int:
    return 2 * 8 * 2 * world  # an out-port and an in-port, 8 bytes each, of each rank and of at most as many nodes


class Clock(threading.local):
    """The time of a thread that uses the link: `lag` (ns) behind the machine's, by no fault of its own.

    Never far behind: after many small messages, which take the machine longer than the link, a large one would be there
    at once.
    """

    lag = 0
    _stopped_at: int | None = None

    def time(self) -> int:
        return now() - self.lag if self._stopped_at is None else self._stopped_at

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """What is done in between is no doing of the thread's."""
        self._stopped_at = self.time()
        try:
            yield
        finally:
            self.turn_back(self._stopped_at)
            self._stopped_at = None

    def turn_back(self, time: int) -> None:
        """What happened since `time`, by this clock, was none either."""
        self.lag = max(0, min(now() - time, MOST_BEHIND))


class EmulatedLink:
    """One rank's access to the ports of all."""

    def __init__(self, link: Link | Network, ports: int, tapes: list[Files]) -> None:
        self._file = ports
        words = memoryview(mmap.mmap(ports, _size(len(tapes)))).cast("q")
        self._ports = Ports(link, words[: len(words) // 2], words[len(words) // 2 :])
        self._dues = [Dues(files) for files in tapes]
        self.rewind()

    def rewind(self) -> None:
        """A run begins: nobody is behind."""
        self.clock = Clock()

    def due(self, posting: Posting) -> int:
        """When this rank's part is over (ns); 0 if nobody can know yet."""
        return self._dues[posting.rank][posting.number]

    def match(self, posting: Posting, op: str = "", ranks: tuple[int, ...] = ()) -> None:
        """Take the ports for an operation, if all its sides are posted and nobody has.

        `op`, `ranks`: of a collective, what it is and the global ranks of its group.
        """
        if posting.kind == Kind.COLLECTIVE:
            if len(posting.sides) == len(ranks):
                self._match_collective(posting, op, ranks)
        elif posting.partner:
            both = (posting, posting.partner)
            self._match_message(*(both if posting.kind == Kind.SEND else reversed(both)))

    def match_alone(self, posting: Posting, met: int) -> None:
        """Take the ports for a message whose bytes are there, before it shows which posting was the other side.

        So it is with receives from any rank. `met`: when that side was posted, as far as one can tell.
        """
        with self._turn():
            if not self.due(posting):
                sending = posting.kind == Kind.SEND
                ends = (posting.rank, posting.peer) if sending else (posting.peer, posting.rank)
                passage = self._carry(posting, *ends, met)
                self._dues[posting.rank][posting.number] = passage.left if sending else passage.arrived

    def _match_message(self, send: Posting, receive: Posting) -> None:
        with self._turn():
            left = self.due(send)
            if not left:
                left = self._carry(send, send.rank, receive.rank, ready(receive)).left
                self._dues[send.rank][send.number] = left
            self._dues[receive.rank][receive.number] = left + self._ports.latency(send.rank, receive.rank)

    def _carry(self, posting: Posting, sender: int, receiver: int, met: int) -> Passage:
        size = 0 if posting.row[Column.CONTROL] else posting.row[Column.BYTES]
        return self._ports.carry(sender, receiver, size, max(ready(posting), met))

    def _match_collective(self, posting: Posting, op: str, ranks: tuple[int, ...]) -> None:
        sides = posting.sides
        plan = () if posting.row[Column.CONTROL] else _plan(op, posting, ranks)
        with self._turn():
            if not self.due(posting):
                done = self._ports.play(plan, ranks, max(ready(side) for side in sides.values()))
                for rank, due in done.items():
                    self._dues[rank][sides[rank].number] = due

    @contextmanager
    def _turn(self) -> Iterator[None]:
        fcntl.lockf(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)


def _plan(op: str, posting: Posting, ranks: tuple[int, ...]) -> Iterable[plans.Round]:
    """The messages of a collective. Those of an all-to-all count as equally long."""
    world, size, elements = len(ranks), posting.row[Column.BYTES], posting.row[Column.ELEMENTS]
    chunks = plans.chunk_sizes(elements, size // max(1, elements), world)
    root = ranks.index(posting.peer) if posting.peer >= 0 else 0
    sizes = [posting.sides[rank].row[Column.BYTES] for rank in ranks]
    if op == "all_reduce":
        return plans.ring_all_reduce(chunks)
    if op == "reduce_scatter":
        return plans.ring_reduce_scatter(chunks)
    if op == "all_gather":
        return plans.ring_all_gather(sizes)
    if op == "broadcast":
        return plans.ring_broadcast(chunks, root)
    if op == "reduce":
        return plans.ring_reduce(chunks, root)
    if op == "gather":
        return plans.gather(world, size, root)
    if op == "scatter":
        return plans.scatter(world, size, root)
    if op == "all_to_all":
        return plans.all_to_all([size // world for size in sizes])
    return ()  # a barrier


def ready(posting: Posting) -> int:
    """When a rank had posted its side, or would have, had it been woken in time."""
    return posting.row[Column.POSTED] - posting.row[Column.LAG]


def sleep_until(due: int) -> None:
    """Until `due` (ns), to within some microseconds where the machine lets us."""
    while (left := due - now()) > 0:
        time.sleep(max(0, left - _NEARLY) / 1e9)
