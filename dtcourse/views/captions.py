"""What a frame of the film says in words: the messages of its step, and whatever went another way than a sum should.

The caption tells what happened, without judging it; a note says that something is wrong, and is shown in red.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from dtcourse.views import words
from dtcourse.views.chunks import Chunk, Piece, cuts

if TYPE_CHECKING:
    from dtcourse.views.film import Frame, Message

MOST = 4  # messages or notes are named one by one


def add(frames: list[Frame], world: int) -> list[Frame]:
    """The frames with their captions and notes. A note appears in the frame in which it becomes true."""
    last = max((frame.step or 0 for frame in frames), default=0)
    done, seen = [], set()
    for number, frame in enumerate(frames):
        found = dict.fromkeys(note for rank, row in enumerate(frame.rows) for note in _oddities(rank, row))
        fresh = [note for note in found if note not in seen] + (
            list(_undone(frames[number - 1], frame)) if number else []
        )
        seen = set(found)
        notes = (_capital(words.some(fresh, MOST, "; ")) + ".",) if fresh else ()
        caption = _caption(frame, last, world)
        if 0 < number == len(frames) - 1 and not frame.waits:
            caption += _completeness(frame)
        done.append(replace(frame, notes=notes, caption=caption))
    return done


def _caption(frame: Frame, last: int, world: int) -> str:
    if frame.waits and not frame.messages:
        return "Nothing moves any more: " + words.some([f"rank {w.rank} {w.what}" for w in frame.waits], MOST) + "."
    if frame.title == "start":
        return _start(frame, world)
    if frame.step is None:
        return f"{frame.title}: a library collective; all ranks at once, and what it does inside is not visible."
    count = sum(m.times for m in frame.messages)
    total = words.size(sum(m.bytes * m.times for m in frame.messages))
    lost = [m for m in frame.messages if not m.arrived]
    none = ", none has arrived" if len(lost) == len(frame.messages) else ""
    told = words.some([_tell(m, bool(none)) for m in frame.messages], MOST)
    text = f"Step {frame.step} of {last}: {count} message{'s' if count != 1 else ''}, {total}{none}. {_capital(told)}."
    stuck = [f"rank {w.rank} {w.what}" for w in frame.waits if not w.sends]
    return f"{text} {_capital(words.some(stuck, MOST))}." if stuck else text


def _start(frame: Frame, world: int) -> str:
    lengths = {row[-1].stop for row in frame.rows if row}
    if len(lengths) != 1:
        return "Before the first step: nothing is known yet." if not lengths else "Before the first step."
    return f"Before the first step: each rank holds {lengths.pop()} elements of its own, cut into {world} chunks."


def _tell(message: Message, none_arrived: bool) -> str:
    times = f" {message.times} times" if message.times > 1 else ""
    lost = "" if message.arrived or none_arrived else " (has not arrived)"
    return f"rank {message.sender} sends {message.what} to rank {message.receiver}{times}{lost}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _oddities(rank: int, row: tuple[Chunk, ...]) -> Iterator[str]:
    homes = cuts(row[-1].stop, len(row)) if row else []
    for number, chunk in enumerate(row):
        for piece in chunk.pieces:
            yield from (f"rank {rank}, chunk {number}: {what}" for what in _odd(piece, homes))


def _odd(piece: Piece, homes: list[tuple[int, int]]) -> Iterator[str]:
    if piece.counts is None:
        yield "holds what no sum of the ranks' tensors gives"
        return
    if piece.moved is None and any(piece.counts):
        yield "different positions are added up"
    elif piece.moved:
        start, stop = piece.start + piece.moved, piece.stop + piece.moved
        home = f"chunk {homes.index((start, stop))}" if (start, stop) in homes else f"positions {start} to {stop - 1}"
        yield f"holds {home}"
    for times in sorted(set(piece.counts) - {0, 1}):
        who = [rank for rank, count in enumerate(piece.counts) if count == times]
        yield f"{words.ranks(who)} count{'s' if len(who) == 1 else ''} {times} times"


def _undone(before: Frame, frame: Frame) -> Iterator[str]:
    """Chunks that were complete and are not any more: something has overwritten them."""
    for rank, (old, new) in enumerate(zip(before.rows, frame.rows, strict=True)):
        for number, (was, now) in enumerate(zip(old, new, strict=False)):
            if was.complete and not now.complete:
                yield f"rank {rank}, chunk {number}: was complete and is overwritten"


def _completeness(frame: Frame) -> str:
    """How many chunks are complete in the end. Only a count: how many there should be depends on the algorithm."""
    chunks = [chunk for row in frame.rows for chunk in row if chunk.pieces]
    complete = sum(chunk.complete for chunk in chunks)
    return f" {complete} of {len(chunks)} chunks complete (every rank counted once)." if chunks else ""
