"""An algorithm as rounds, who sends what to whom in each, and what each rank then has to send and receive, in turn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple

from dtcourse.events import RETURN
from dtcourse.grading.findings import Finding, number_of
from dtcourse.grading.messages import Parcel
from dtcourse.grading.reading import Chunks, last_step, start_of
from dtcourse.run import Run


@dataclass(frozen=True, slots=True)
class Sending:
    """Rank `rank` sends chunks (None: the whole tensor), summed over the ranks `of`, to the rank `to`."""

    rank: int
    to: int
    chunk: Chunks
    of: tuple[int, ...]


class Turns(NamedTuple):
    """For each rank, in order: its parcels, and from which rank it receives, with what the algorithm does there."""

    parcels: list[list[Parcel]]
    sources: list[list[tuple[int, str]]]


def in_turn(rounds: Iterable[tuple[str, Sequence[Sending]]], world: int, parts: int | None = None) -> Turns:
    """`rounds`: what each one is, in words, and its messages, all at once.

    A message is in the step after the last one that its sender has received: so a rank that has waited for nothing is
    in step 1, in whatever round that is. `parts`: how many chunks a tensor has, if not one for each rank.
    """
    turns = Turns([[] for _ in range(world)], [[] for _ in range(world)])
    reached = [0] * world  # the highest step of what each rank has received
    for why, sendings in rounds:
        before, received = list(reached), [len(sources) for sources in turns.sources]
        for s in sendings:
            step = before[s.rank] + 1
            turns.parcels[s.rank].append(Parcel(s.to, s.chunk, s.of, step, received[s.rank], parts, why))
            turns.sources[s.to].append((s.rank, why))
            reached[s.to] = max(reached[s.to], step)
    return turns


def wrong_receives(run: Run, turns: Turns, name: str, members: Sequence[int] | None = None) -> Iterator[Finding]:
    """Of ranks that wait for ever: who receives from a rank that sends it nothing there, or leaves too early."""
    members = range(len(turns.sources)) if members is None else members
    if (start := start_of(run, members[0])) is None or start.numel() < len(members):
        return  # messages without elements may be left out, so nobody knows which receive is which
    returned = {e.rank for e in run.events if e.kind == RETURN}
    for rank, sources in zip(members, turns.sources, strict=True):
        receives = run.receives(rank)
        for e, source in zip_longest(receives, sources[: len(receives)]):
            if source is None:
                wanted = "nothing to it there"
            elif e.peer != members[source[0]]:
                wanted = f"to it from rank {members[source[0]]} there ({source[1]})"
            else:
                continue
            step = last_step(run) if e.pending else e.step
            yield Finding(f"rank {rank} receives from rank {e.peer}; {name} sends {wanted}", step, rank, e.line)
            break
        else:
            if rank in returned and len(receives) < len(sources):
                source, why = sources[len(receives)]
                after = f"rank {rank} returns after {number_of(len(receives), 'receive')}"
                said = f"{after}; {name} sends to it from rank {members[source]} as well ({why})"
                yield Finding(said, last_step(run), rank)
