"""By which way tensors may travel, whoever adds them up; no exercise in particular."""

from __future__ import annotations

from collections.abc import Iterator

from dtcourse.events import COLLECTIVE, SEND, Event
from dtcourse.grading.findings import Finding
from dtcourse.run import Run

_GATHERS = {"all_gather", "gather", "all_to_all"}


def added_on_the_way(run: Run, size: int, what: str) -> Iterator[Finding]:
    """No rank gives all its `size` bytes of `what` away as objects, or to a collective that does not add up."""
    for rank in range(run.world_size) if run.world_size > 1 else ():
        given = [e for e in run.events if e.rank == rank and e.kind in (COLLECTIVE, SEND)]
        objects = [e for e in given if e.control]
        gathered = [e for e in given if not e.control and e.op in _GATHERS]
        if _bytes(objects) >= size:
            said = f"rank {rank} sent {what} as objects, pickled: let them travel as the tensors that they are"
            yield _finding(said, objects)
        if _bytes(gathered) >= size:
            said = f"rank {rank} gave {what} to {gathered[0].op}, so that {run.world_size} times as much is kept"
            yield _finding(f"{said}: add up on the way, with all_reduce", gathered)


def _bytes(events: list[Event]) -> int:
    return sum(e.bytes for e in events)


def _finding(said: str, events: list[Event]) -> Finding:
    largest = max(events, key=lambda e: e.bytes)
    return Finding(said, largest.step, largest.rank, largest.line)
