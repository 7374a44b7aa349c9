"""Deaths: which ranks have died in a run that goes on without them, where all the others can see it.

The reader's process, which sees a rank's pipe close, writes it into the gate (after the step of a held run, which
stands there first). A rank that waits looks there each time it wakes.
"""

from __future__ import annotations

import mmap
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist

from dtcourse.errors import RankDied

MOST_RANKS = 64
_COUNT, _PIDS = 1, 2  # words of the gate: how many have died; the process of each rank that has, or 0
_ACKNOWLEDGED = _PIDS + MOST_RANKS  # by rank: a bit for each death that its receives from any will not raise again
_SIZE = 8 * (_ACKNOWLEDGED + MOST_RANKS)
_PATIENCE = 10.0  # seconds: the reader's process, which knows at once, may be busy


def clear(gate: int) -> None:
    """Before ranks start: nobody has died."""
    os.ftruncate(gate, 8)
    os.ftruncate(gate, _SIZE)


def publish(gate: int, rank: int, pid: int) -> None:
    """In the reader's process: `rank`, which was process `pid`, has died."""
    count = _word(gate, _COUNT) + 1
    for word, value in ((_PIDS + rank, pid), (_COUNT, count)):
        os.pwrite(gate, value.to_bytes(8, sys.byteorder), 8 * word)


def acknowledged(gate: int, rank: int) -> set[int]:
    """In the reader's process: the deaths that `rank` knew when it began to wait in a receive from any."""
    bits = _word(gate, _ACKNOWLEDGED + rank)
    return {dead for dead in range(MOST_RANKS) if bits >> dead & 1}


def _word(gate: int, word: int) -> int:
    return int.from_bytes(os.pread(gate, 8, 8 * word), sys.byteorder)


class Deaths:
    """A rank's view. One object lives as long as the process. Without a `gate` nobody ever dies."""

    def __init__(self, rank: int, gate: int | None = None) -> None:
        self._rank = rank
        self._words = memoryview(mmap.mmap(-1 if gate is None else gate, _SIZE)).cast("Q")
        self.heard: set[int] = set()  # those that a receive from any has raised
        self._needed: frozenset[int] = frozenset()

    def __bool__(self) -> bool:
        return self._words[_COUNT] > 0

    def pids(self) -> dict[int, int]:
        """Process -> rank, of the dead."""
        return {pid: rank for rank in range(MOST_RANKS) if (pid := self._words[_PIDS + rank])}

    @contextmanager
    def needing(self, ranks: Sequence[int]) -> Iterator[None]:
        """While a group of `ranks` is made: none of them may be missing."""
        self._needed = frozenset(ranks)
        try:
            self.check()
            yield
        finally:
            self._needed = frozenset()

    def check(self) -> None:
        """Raises RankDied if one that is needed now is dead."""
        if self and (dead := self._needed.intersection(self.pids().values())):
            raise died(min(dead), "this group needs it")

    def acknowledge(self) -> None:
        """This rank now waits in a receive from any, and none of the deaths it has heard of will wake it."""
        self._words[_ACKNOWLEDGED + self._rank] = sum(1 << rank for rank in self.heard)


class Dead:
    """The dead members of a group, whose members are the processes `pids`."""

    def __init__(self, deaths: Deaths, pids: list[int]) -> None:
        self._deaths, self._pids = deaths, pids

    def __bool__(self) -> bool:
        """Whether anybody has died at all: quickly, since everybody asks at each look."""
        return bool(self._deaths)

    def members(self) -> dict[int, int]:
        """Rank in the group -> global rank."""
        dead = self._deaths.pids() if self else {}
        return {member: dead[pid] for member, pid in enumerate(self._pids) if pid in dead}

    def unheard(self, me: int) -> int | None:
        """The rank whose death a receive from any raises next, if any; with nobody left, one of them each time."""
        dead = {member: rank for member, rank in self.members().items() if member != me}
        new = [rank for rank in dead.values() if rank not in self._deaths.heard]
        if not new and len(dead) < len(self._pids) - 1:
            return None
        return min(new or dead.values(), default=None)

    def hear(self, rank: int) -> None:
        self._deaths.heard.add(rank)

    def acknowledge(self) -> None:
        self._deaths.acknowledge()

    def confirm(self, member: int, seen: Exception) -> int:
        """The memory of a member is gone: its global rank, as soon as its death is known. Raises `seen` if it lives."""
        end = time.monotonic() + _PATIENCE  # if nothing may die here, the run ends meanwhile
        while time.monotonic() < end:
            if (rank := self.members().get(member)) is not None:
                return rank
            time.sleep(0.001)
        raise seen


class MortalStore(dist.Store):
    """Torch's store, but that nobody waits in it for what a dead rank will not write."""

    def __init__(self, store: dist.Store, deaths: Deaths) -> None:
        super().__init__()
        self._store, self._deaths = store, deaths

    def get(self, key: str) -> bytes:
        self.wait([key])
        return self._store.get(key)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        end = time.monotonic() + timeout.total_seconds() if timeout else float("inf")
        while not self._store.check(keys):
            self._deaths.check()
            if time.monotonic() > end:
                raise dist.DistStoreError(f"nobody has written {', '.join(keys)} within {timeout}")
            time.sleep(0.001)

    def set(self, key: str, value: bytes) -> None:
        self._store.set(key, value)

    def add(self, key: str, value: int) -> int:
        return self._store.add(key, value)

    def check(self, keys: list[str]) -> bool:
        return self._store.check(keys)

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        return self._store.compare_set(key, expected, desired)

    def delete_key(self, key: str) -> bool:
        return self._store.delete_key(key)


def died(rank: int, what: str) -> RankDied:
    """What a rank raises on the line that needs a dead one."""
    return RankDied(
        f"rank {rank} has died, and {what}. The run goes on without it where you catch this: "
        "`except ConnectionError as death`, and death.rank says who",
        rank=rank,
    )
