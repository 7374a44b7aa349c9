"""The bars of a timeline: regions, computing, waiting, messages of each rank. A pure function of the `Run`.

Computing is what is left of a rank's time when its waiting is taken away. What had not ended when the record ended is
drawn to the end of the record.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from dtcourse.events import ANY_RANK, COLLECTIVE, CONTROL, HELD, MARK, RECV, REGION, RETURN, SEND, Event, channel
from dtcourse.run import Run
from dtcourse.views import words
from dtcourse.views.roles import roles

MOST_BARS, MOST_ARROWS = 30_000, 5_000
MOST_TINTS = 7  # names of regions that get a tint each
COMPUTE, WAIT = "compute", "wait"


@dataclass(frozen=True, slots=True)
class Bar:
    """A stretch of a rank's time, in microseconds from the start of the record.

    row      0, 1, ... for regions by depth; then those of `Bars.rows`
    pending  had not ended when the record ended
    """

    rank: int
    row: int
    kind: str
    start: float
    end: float
    name: str
    detail: str = ""
    pending: bool = False


@dataclass(slots=True)
class Bars:
    world: int
    span: float  # microseconds
    depth: int  # rows for regions
    rows: tuple[str, ...]  # the names of the rows below them: "work" for computing and waiting, "send", ...
    roles: dict[int, str] = field(default_factory=dict)  # of the ranks whose marks tell
    regions: tuple[str, ...] = ()  # their names, as they first appear; of many those that took longest
    bars: list[Bar] = field(default_factory=list)
    arrows: list[tuple[int, float, int, float]] = field(default_factory=list)  # from rank, at; to rank, at
    note: str = ""


def bars(run: Run) -> Bars:
    """All bars, by rank, row and start."""
    events = sorted(run.events, key=lambda e: (e.rank, e.posted))
    start, end = run.span
    clock = _Clock(run, start, end)
    regions = list(_regions([e for e in events if e.kind == REGION and e.op != CONTROL], clock))
    depth = 1 + max((bar.row for bar in regions), default=-1)
    rows = _rows(events)
    places = {name: depth + i for i, name in enumerate(rows)}
    found = regions + list(_messages(events, clock, places)) + list(_activity(run, events, clock, depth))
    found.sort(key=lambda bar: (bar.rank, bar.row, bar.start))
    note = ""
    if len(found) > MOST_BARS:
        note = f"Only {MOST_BARS:,} of {len(found):,} bars are drawn: the earliest. "
        found = sorted(sorted(found, key=lambda bar: bar.start)[:MOST_BARS], key=lambda b: (b.rank, b.row, b.start))
    arrows = list(_arrows(run, clock))
    if len(arrows) > MOST_ARROWS:
        note += f"The arrows of {len(arrows):,} messages are left out."
        arrows = []
    names = _names(regions)
    return Bars(
        run.world_size,
        clock.at(end),
        depth,
        rows,
        roles=roles(run),
        regions=names,
        bars=found,
        arrows=arrows,
        note=note.strip(),
    )


@dataclass(frozen=True, slots=True)
class _Clock:
    run: Run
    start: int
    end: int

    def at(self, time: int | None) -> float:
        return round(((self.end if time is None else time) - self.start) / 1000, 1)

    def words(self, e: Event) -> str:
        """What to say about an event besides its name and its times."""
        parts = [words.size(e.bytes)] if e.kind in (SEND, RECV, COLLECTIVE) else []
        parts += [f"step {e.step}"] if e.step else []
        parts += [f"{key}={value}" for key, value in e.labels.items()]
        if e.line:
            parts.append(f"{words.place(e.line)}  {self.run.source_line(e.line)}".strip())
        return " · ".join(parts)


def _regions(events: list[Event], clock: _Clock) -> Iterator[Bar]:
    """A region lies one row below the region that encloses it."""
    open_until: dict[int, list[int]] = {}
    for e in sorted(events, key=lambda e: (e.rank, e.posted, -(e.ended or clock.end))):
        enclosing = [t for t in open_until.get(e.rank, []) if t > e.posted]
        open_until[e.rank] = [*enclosing, e.ended or clock.end]
        pending = e.pending
        yield Bar(e.rank, len(enclosing), REGION, clock.at(e.posted), clock.at(e.ended), e.op, clock.words(e), pending)


def _names(regions: list[Bar]) -> tuple[str, ...]:
    took: dict[str, float] = {}
    for bar in sorted(regions, key=lambda bar: bar.start):
        took[bar.name] = took.get(bar.name, 0.0) + bar.end - bar.start
    longest = sorted(took, key=lambda name: -took[name])[:MOST_TINTS]
    return tuple(name for name in took if name in longest)


def _rows(events: list[Event]) -> tuple[str, ...]:
    """Rows that something lies in: a run of collectives has no messages to show."""
    kinds = {e.kind for e in events}
    messages = ("send", "recv") if kinds & {SEND, RECV} or COLLECTIVE not in kinds else ()
    return ("work", *messages, *(("collective",) if COLLECTIVE in kinds else ()))


def _messages(events: list[Event], clock: _Clock, places: dict[str, int]) -> Iterator[Bar]:
    for e in events:
        where = clock.at(e.posted), clock.at(e.ended)
        if e.kind == SEND:
            yield Bar(e.rank, places["send"], SEND, *where, f"sends to rank {e.peer}", clock.words(e), e.pending)
        elif e.kind == RECV:
            peer = "any rank" if e.peer == ANY_RANK else f"rank {e.peer}"
            yield Bar(e.rank, places["recv"], RECV, *where, f"receives from {peer}", clock.words(e), e.pending)
        elif e.kind == COLLECTIVE:
            yield Bar(e.rank, places["collective"], COLLECTIVE, *where, e.op, clock.words(e), e.pending)
        elif e.kind == MARK:
            yield Bar(e.rank, places["work"], MARK, where[0], where[0], e.op, clock.words(e))


def _activity(run: Run, events: list[Event], clock: _Clock, depth: int) -> Iterator[Bar]:
    """Waiting, and computing in between."""
    for rank in range(run.world_size):
        own = [e for e in events if e.rank == rank]
        if not own:
            continue
        now = own[0].posted
        for since, until, e in sorted((wait for e in own if (wait := _waiting(e))), key=lambda wait: wait[0]):
            if since > now:
                yield Bar(rank, depth, COMPUTE, clock.at(now), clock.at(since), "computes")
            if (until or clock.end) > now:
                what = f"waits in {e.op}" + (f" for rank {e.peer}" if e.peer is not None and e.peer >= 0 else "")
                what = "is held by the reader" if e.kind == HELD else what
                at = clock.at(max(since, now)), clock.at(until)
                yield Bar(rank, depth, WAIT, *at, what, clock.words(e), until is None)
                now = until or clock.end
        last = max((t for e in own for t in (e.ended, e.wait_to, e.posted) if t is not None), default=now)
        if last > now:
            yield Bar(rank, depth, COMPUTE, clock.at(now), clock.at(last), "computes")
        yield from (
            Bar(rank, depth, RETURN, clock.at(e.posted), clock.at(e.posted), "returns") for e in own if e.kind == RETURN
        )


def _waiting(e: Event) -> tuple[int, int | None, Event] | None:
    """From when until when the rank waited in this event."""
    if e.kind == HELD:
        return e.posted, e.ended, e
    return (e.wait_from, e.wait_to, e) if e.wait_from is not None else None


def _arrows(run: Run, clock: _Clock) -> Iterator[tuple[int, float, int, float]]:
    ends = {channel(e): e for e in run.receives() if not e.pending}
    for e in run.messages():
        if receive := ends.get(channel(e)):
            yield e.rank, clock.at(e.posted), receive.rank, clock.at(receive.ended)


def shares(found: Bars) -> list[float]:
    """The part of each rank's time in which it waited."""
    waited = [0.0] * found.world
    for bar in found.bars:
        if bar.kind == WAIT:
            waited[bar.rank] += bar.end - bar.start
    return [w / found.span if found.span else 0.0 for w in waited]


def bars_data(found: Bars, title: str) -> dict[str, Any]:
    """The bars as the plain data that timeline.js reads. Names and details, which repeat, are kept once."""
    texts: dict[str, int] = {}

    def number(text: str) -> int:
        return texts.setdefault(text, len(texts))

    rows = [
        [b.rank, b.row, b.kind, b.start, b.end, number(b.name), number(b.detail), int(b.pending)] for b in found.bars
    ]
    return {
        "title": title or "a run",
        "world": found.world,
        "span": found.span,
        "depth": found.depth,
        "rows": list(found.rows),
        "roles": [found.roles.get(rank, "") for rank in range(found.world)],
        "regions": list(found.regions),
        "bars": rows,
        "texts": list(texts),
        "arrows": found.arrows,
        "note": found.note,
        "waited": [round(share, 4) for share in shares(found)],
    }
