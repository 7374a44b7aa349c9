"""When each rank of a data-parallel step computed and when it communicated. A pure function of the `Run`.

Communication is what the regions "all-reduce" cover, and the messages and collectives outside of them; what lies under
something else of the same rank is not counted again. It is overlapped while its rank is in its backward pass, and
exposed otherwise. A pass is its region "backward" less the regions "wait" inside of it. Stock DDP waits for its
all-reduces inside of it, too, and does not tell: without regions "all-reduce" the last collective that is begun in a
pass ends it. The record does not tell threads apart: who communicates in the thread that computes, and so overlaps
nothing, has to say so, with region("wait") around it. Drawing is left to overlap.py.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from dtcourse.events import COLLECTIVE, RECV, REGION, SEND, WAIT, Event
from dtcourse.run import Run
from dtcourse.views import words

FORWARD, BACKWARD, ALL_REDUCE = "forward", "backward", "all-reduce"  # the names of the regions
OVERLAPPED, EXPOSED = "overlapped", "exposed"
SLIVER = 1 / 500  # of a backward pass: between two waits nothing is computed


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch of a rank's time, in microseconds from the start of the step.

    kind     FORWARD or BACKWARD; of communication OVERLAPPED or EXPOSED
    bucket   of an all-reduce, where its region tells
    """

    rank: int
    kind: str
    start: float
    end: float
    what: str
    bucket: int | None = None
    pending: bool = False

    @property
    def length(self) -> float:
        return self.end - self.start


@dataclass(frozen=True)
class Step:
    """computing, communicating  rank -> its stretches in order of time, for all ranks that have any of either"""

    computing: dict[int, tuple[Stretch, ...]]
    communicating: dict[int, tuple[Stretch, ...]]

    @cached_property
    def span(self) -> float:
        """Microseconds from the first stretch's start, which is 0, to the last one's end."""
        both = (*self.computing.values(), *self.communicating.values())
        return max(stretch.end for lane in both for stretch in lane)

    def spent(self, rank: int, *kinds: str) -> float:
        """Microseconds that a rank communicated, of these kinds."""
        return sum(stretch.length for stretch in self.communicating[rank] if stretch.kind in kinds)

    def share(self, *ranks: int) -> float:
        """The overlapped part of the communication of some ranks; 0 if they had none."""
        whole = sum(self.spent(rank, OVERLAPPED, EXPOSED) for rank in ranks)
        return sum(self.spent(rank, OVERLAPPED) for rank in ranks) / whole if whole else 0.0


def has_exchange(run: Run) -> bool:
    """Whether a run has both: backward passes, and all-reduces beside them."""
    return {BACKWARD, ALL_REDUCE} <= {e.op for e in run.regions()}


def steps(run: Run) -> list[Step]:
    """The steps of a run: what a rank did from one forward (or backward, where none is told) to the next.

    Passes with no communication between them are one step: gradients were accumulated. What was communicated before
    the first pass is left out. Raises ValueError, with the line to write, for a run without backward passes.
    """
    passes = _passes(run)
    sent = sorted((e for e in run.events if _communicates(e)), key=lambda e: e.posted)
    end = run.span[1]
    first = {rank: _first_of_each_step(rank, passes, sent) for rank in {e.rank for e in passes}}
    most = max(first.values(), key=len)
    found: list[list[Event]] = [[] for _ in range(max(len(most), 1))]
    following: dict[int, list[tuple[int, int]]] = {}  # rank -> (start, step) of what it communicated, in order
    for e in sent:
        own = first.get(e.rank, [])
        # A rank with nothing to compute in a step begins earlier; but no all-reduce ends before all have begun it.
        step = bisect_right(*((own, e.posted) if len(own) == len(most) else (most, e.ended or end))) - 1
        if step >= 0:
            found[step].append(e)
            following.setdefault(e.rank, []).append((e.posted, step))
    for e in passes:
        own = following.get(e.rank, [])
        later = bisect_right(own, e.posted, key=lambda one: one[0])
        found[own[later][1] if later < len(own) else -1].append(e)
    waits = run.regions(WAIT)
    return [_step(events, waits, end) for events in found if any(e.op in (FORWARD, BACKWARD) for e in events)]


def chosen(run: Run, step: int) -> tuple[Step, str]:
    """A step, counted as Python counts (-1 is the last), and which one it is in words."""
    found = steps(run)
    number, which = words.step(step, len(found), run.function)
    return found[number], which


def _passes(run: Run) -> list[Event]:
    found = run.regions(FORWARD) + run.regions(BACKWARD)
    if not any(e.op == BACKWARD for e in found):
        others = ", ".join(sorted({e.op for e in run.regions()})) or "none"
        raise ValueError(
            f"{run.function or 'this run'} has no backward passes (regions it has: {others}). Tell where they are: "
            '`with region("backward"):` around loss.backward(), after `from dtcourse import region`'
        )
    return sorted(found, key=lambda e: e.posted)


def _communicates(e: Event) -> bool:
    return not e.control and (e.kind in (SEND, RECV, COLLECTIVE) or (e.kind == REGION and e.op == ALL_REDUCE))


def _first_of_each_step(rank: int, passes: list[Event], sent: list[Event]) -> list[int]:
    """When a rank began to communicate, in each step in which it had something to compute."""
    own = [e for e in passes if e.rank == rank]
    opens = FORWARD if any(e.op == FORWARD for e in own) else BACKWARD
    starts = [e.posted for e in own if e.op == opens]
    first: dict[int, int] = {}  # how many passes had begun -> when it first communicated then
    for e in sent:
        if e.rank == rank and (begun := bisect_right(starts, e.posted)):
            first.setdefault(begun, e.posted)
    return list(first.values())


def _step(events: list[Event], waits: list[Event], end: int) -> Step:
    origin = min(e.posted for e in events)
    computing, communicating = {}, {}
    for rank in sorted({e.rank for e in events}):
        own = [e for e in events if e.rank == rank]
        sent = [e for e in own if _communicates(e)]
        calls = [] if any(e.op == ALL_REDUCE for e in sent) else [e for e in sent if e.kind == COLLECTIVE]
        passes = [e for e in own if e.op in (FORWARD, BACKWARD)]
        pieces = [one for e in passes for one in _worked(e, [w for w in waits if w.rank == rank], calls, end)]
        computing[rank] = tuple(_apart(pieces, origin, end))
        backward = [one for one in computing[rank] if one.kind == BACKWARD]
        communicating[rank] = tuple(_parts(_apart(sent, origin, end), backward))
    return Step(computing, communicating)


def _worked(e: Event, waits: list[Event], calls: list[Event], end: int) -> Iterator[Event]:
    """A pass, in as many pieces as something is computed in; all of it, if it is a forward."""
    start, last = e.posted, e.ended
    if e.op == BACKWARD:
        last = max((call.posted for call in calls if start < call.posted < (e.ended or end)), default=last)
        least = SLIVER * ((e.ended or end) - e.posted)
        for wait in sorted(waits, key=lambda wait: wait.posted):
            if start <= wait.posted < (e.ended or end):
                if wait.posted - start > least:
                    yield replace(e, posted=start, ended=wait.posted)
                start = wait.ended or end
    if start < (last or end):
        yield replace(e, posted=start, ended=last)


def _apart(events: list[Event], origin: int, end: int) -> Iterator[Stretch]:
    """One after the other: what begins under another begins, here, when that has ended."""
    free = 0.0
    for e in sorted(events, key=lambda e: (e.posted, -(e.ended or end))):
        start, until = ((time - origin) / 1000 for time in (e.posted, e.ended or end))
        if until > free:
            bucket = e.labels.get("bucket") if e.kind == REGION else None
            yield Stretch(e.rank, e.op, max(start, free), until, _what(e), bucket, e.pending)
            free = until


def _what(e: Event) -> str:
    if e.kind == REGION:
        return e.op + (f" of bucket {e.labels['bucket']}" if "bucket" in e.labels else "")
    to = {SEND: f" to rank {e.peer}", RECV: f" from rank {e.peer}"}.get(e.kind, "")
    return f"{e.op}{to}, {words.size(e.bytes)}"


def _parts(sent: Iterable[Stretch], backward: list[Stretch]) -> Iterator[Stretch]:
    """Communication, cut where a backward pass begins or ends."""
    for one in sent:
        cuts = {time for stretch in backward for time in (stretch.start, stretch.end) if one.start < time < one.end}
        times = [one.start, *sorted(cuts), one.end]
        for start, end in pairwise(times):
            inside = any(stretch.start <= start and end <= stretch.end for stretch in backward)
            kind = OVERLAPPED if inside else EXPOSED
            yield Stretch(one.rank, kind, start, end, one.what, one.bucket, one.pending)
