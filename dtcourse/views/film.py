"""A watched run as a film: frame 0 is before anything, then a frame after every step. A pure function of the `Run`.

A step is what `Event.step` numbers. A library collective is a frame too: all ranks at once, without messages, for
what it does inside is not visible. The state of a rank after a frame is what its tensor argument held when the rank
posted its next operation, or returned.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch

from dtcourse.events import ANY_RANK, COLLECTIVE, HELD, RECV, RETURN, SEND, Event, Line, channel
from dtcourse.run import Run
from dtcourse.views import captions, words
from dtcourse.views.chunks import Chunk, are_sums_in_place, is_provenance, pieces, row, which

Key = tuple[float, int, int]  # (step, 0, 0) of messages; (step before it, 1, number) of a collective
LATER: Key = (math.inf, 0, 0)  # posted and not completed: it stands after everything that completed
RETURNED: Key = (math.inf, 1, 0)


@dataclass(frozen=True, slots=True)
class Message:
    """What one rank sent to another in a frame. `counts`: how often each rank contributed to what it carries."""

    sender: int
    receiver: int
    chunk: int | None  # its number, if it is exactly one chunk
    what: str  # "chunk 2", "positions 3 to 5", ...
    bytes: int
    line: int | None  # in `Film.lines`
    arrived: bool
    counts: tuple[int, ...] = ()
    times: int = 1


@dataclass(frozen=True, slots=True)
class Wait:
    """A rank that waits when the record ends."""

    rank: int
    what: str
    line: int | None
    sends: bool = False


@dataclass(frozen=True, slots=True)
class Frame:
    """What every rank holds after a step, and the messages that led there. `rows[rank]` is empty if not known."""

    title: str  # "start", "step 3", "all_reduce"
    step: int | None  # None for a collective
    rows: tuple[tuple[Chunk, ...], ...]
    messages: tuple[Message, ...] = ()
    waits: tuple[Wait, ...] = ()
    lines: tuple[tuple[int, str], ...] = ()  # (number in `Film.lines`, which ranks), in order of use
    notes: tuple[str, ...] = ()
    caption: str = ""


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of the reader's code with what stands around it."""

    place: str  # "ring.py, line 14"
    text: str
    before: tuple[str, ...]
    after: tuple[str, ...]


@dataclass(slots=True)
class Film:
    world: int
    decoded: bool  # the values are provenance values
    frames: list[Frame] = field(default_factory=list)
    lines: list[SourceLine] = field(default_factory=list)
    failure: str | None = None

    def at(self, step: int) -> int:
        """The number of the frame after `step`: the last one of all if the run did not get so far."""
        at = [i for i, frame in enumerate(self.frames) if frame.step is not None and frame.step >= step]
        return at[0] if at else len(self.frames) - 1


def film(run: Run, running: bool = False) -> Film:
    """Cut the run into frames. Of a run that is still `running`, what has not arrived is no frame yet."""
    return _Cutter(run, running).film()


def demand_watched(run: Run) -> None:
    """Raise ValueError if there is nothing to show of this run."""
    if any(e.arguments for e in run.events):
        return
    raise ValueError(
        f"the player follows the chunks of the function's first tensor argument, and no event of this run of "
        f"{run.function or 'a function'} carries one. Run it again with cluster.run(..., watch=True), and give it "
        f"a tensor, for example per_rank([provenance(world, rank, length) for rank in range(world)])."
    )


class _Cutter:
    """The events of one run by rank and by frame."""

    def __init__(self, run: Run, running: bool) -> None:
        self.run, self.running, self.world = run, running, run.world_size
        events = [e for e in run.events if e.kind in (SEND, RECV, COLLECTIVE, RETURN, HELD) and not e.control]
        self.keys = dict(_keys(events))
        self.events = events
        self.states = [[e for e in events if e.rank == rank and e.arguments] for rank in range(self.world)]
        self.first = [states[0].arguments[0] if states else None for states in self.states]
        self.decoded = self._tells()
        self.received = {channel(e): e for e in events if e.kind == RECV}
        self.lines: dict[Line, int] = {}

    def film(self) -> Film:
        frames = [Frame("start", 0, self._rows((0, 0, 0)))]
        for key in sorted({self.keys[id(e)] for e in self.events if e.kind != HELD and self.keys[id(e)] < LATER}):
            frame = self._frame(key)
            if self.running and frame.messages and not any(m.arrived for m in frame.messages):
                break  # the ranks are held before this step: it has not happened yet
            frames.append(frame)
        waits = () if self.running else tuple(self._waits())
        if waits and len(frames) == 1:
            frames.append(Frame("stuck", None, frames[0].rows))
        stuck = self._used([(wait.line, wait.rank) for wait in waits])
        frames[-1] = replace(frames[-1], waits=waits, lines=stuck or frames[-1].lines)
        lines = [self._source(line) for line in self.lines]
        return Film(self.world, self.decoded, captions.add(frames, self.world), lines, self.run.failure)

    def _tells(self) -> bool:
        """Whether the tensors that the ranks began with say where their numbers come from."""
        known = {rank: t for rank, t in enumerate(self.first) if t is not None}
        if any(is_provenance(t, self.world, rank) for rank, t in known.items()):
            return True
        return are_sums_in_place(list(known.values()), self.world)

    def _frame(self, key: Key) -> Frame:
        events = [e for e in self.events if self.keys[id(e)] == key and e.kind in (SEND, COLLECTIVE)]
        messages = _together([self._message(e) for e in events if e.kind == SEND])
        lines = self._used([(self._line(e), e.rank) for e in events])
        if messages:
            return Frame(f"step {key[0]:.0f}", int(key[0]), self._rows(key), messages, lines=lines)
        if not events:  # receives whose sends were lost, with a rank that died
            return Frame(f"step {key[0]:.0f}", int(key[0]), self._rows(key))
        return Frame(events[0].op, None, self._rows(key), lines=lines)

    def _rows(self, key: Key) -> tuple[tuple[Chunk, ...], ...]:
        tensors = [self._state(rank, key) for rank in range(self.world)]
        return tuple(() if t is None else row(t, self.world, self.decoded) for t in tensors)

    def _state(self, rank: int, key: Key) -> torch.Tensor | None:
        """What the rank's tensor held when it posted its first operation after `key`."""
        states = self.states[rank]
        # a receive may be posted early, before an earlier one has arrived: it saw an older state
        arrived = max((e.ended or 0 for e in states if e.kind == RECV and self.keys[id(e)] <= key), default=0)
        for e in states:
            if self.keys[id(e)] > key and not (e.kind == RECV and e.posted < arrived):
                return e.arguments[0]
        return states[-1].arguments[0] if states else None

    def _message(self, e: Event) -> Message:
        receive = self.received.get(channel(e))
        arrived = not e.pending if receive is None else not receive.pending
        chunk, what, counts = None, words.size(e.bytes), ()
        if e.payload is not None:
            chunk, what = which(e.payload, e.arguments[0] if e.arguments else None, self.world, self.decoded)
            held = pieces(e.payload.flatten(), self.world) if self.decoded and e.payload.dtype == torch.int64 else ()
            counts = (held[0].counts or ()) if held else ()
        return Message(e.rank, e.peer, chunk, what, e.bytes, self._line(e), arrived, counts)

    def _waits(self) -> Iterator[Wait]:
        for e in self.events:
            if e.pending and e.kind == RECV:
                peer = "any rank" if e.peer == ANY_RANK else f"rank {e.peer}"
                yield Wait(e.rank, f"waits to receive from {peer}", self._line(e))
            elif e.pending and e.kind == SEND:
                yield Wait(e.rank, f"waits to send to rank {e.peer}", self._line(e), True)
            elif e.pending and e.kind == COLLECTIVE:
                yield Wait(e.rank, f"waits in {e.op}", self._line(e))

    def _used(self, used: list[tuple[int | None, int]]) -> tuple[tuple[int, str], ...]:
        """Each line once, with the ranks that ran it."""
        numbers = dict.fromkeys(number for number, _ in used if number is not None)
        return tuple((n, words.ranks((rank for m, rank in used if m == n), self.world)) for n in numbers)

    def _line(self, e: Event) -> int | None:
        return None if e.line is None else self.lines.setdefault(e.line, len(self.lines))

    def _source(self, line: Line) -> SourceLine:
        text = self.run.sources.get(line.file, "").splitlines()
        at = line.number - 1
        shown = text[at] if 0 <= at < len(text) else ""
        return SourceLine(words.place(line), shown, tuple(text[max(at - 1, 0) : at]), tuple(text[at + 1 : at + 5]))


def _keys(events: list[Event]) -> Iterator[tuple[int, Key]]:
    """Where each event stands in the film, by its id."""
    before = [0] * (1 + max((e.rank for e in events), default=0))  # the highest step of a rank so far
    collectives: dict[tuple, list[int]] = {}
    for e in events:
        if e.kind == RETURN:
            yield id(e), RETURNED
        elif e.kind == COLLECTIVE:
            steps = collectives.setdefault((e.group, e.sequence), [])
            steps.append(max(before[e.rank], e.step - 1))
        elif e.kind == RECV and e.pending:
            yield id(e), LATER
        else:
            before[e.rank] = max(before[e.rank], e.step - (e.kind == HELD))
            yield id(e), (e.step, 0, 0)
    places = {which: (max(steps), 1, i) for i, (which, steps) in enumerate(collectives.items())}
    for e in events:
        if e.kind == COLLECTIVE:
            yield id(e), places[e.group, e.sequence]


def _together(messages: list[Message]) -> tuple[Message, ...]:
    """The same message, sent several times in a frame, once, with its number of times."""
    found: dict[Message, int] = {}
    for message in messages:
        found[message] = found.get(message, 0) + 1
    ordered = sorted(found.items(), key=lambda entry: (entry[0].sender, entry[0].receiver))
    return tuple(replace(message, times=times) for message, times in ordered)
