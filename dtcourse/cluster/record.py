"""From tapes to a `Run`."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from dtcourse import raw
from dtcourse.backends.tape import Column, Kind, Reader, Recorded
from dtcourse.cluster import sources
from dtcourse.events import ANY_RANK, COLLECTIVE, HELD, MARK, RECV, REGION, RETURN, SEND, Event, Line

_KINDS = {
    Kind.SEND: SEND,
    Kind.RECV: RECV,
    Kind.COLLECTIVE: COLLECTIVE,
    Kind.REGION: REGION,
    Kind.MARK: MARK,
    Kind.RETURN: RETURN,
    Kind.HELD: HELD,
}


def read(readers: list[Reader]) -> tuple[Callable[[], list[Event]], dict[str, str]]:
    """A function that decodes what is on the tapes now, and label -> text of the files that they speak of.

    Labels and texts are settled at once: a file may be edited, and a cell's name be given to another.
    """
    if all(reader.empty() for reader in readers):
        return list, {}
    tapes = [reader.copy() for reader in readers]
    references = [(tape, ref) for tape in tapes for ref in set(tape.table()[:, Column.LINE].tolist()) - {0}]
    files = {json.loads(tape.blob(reference))[0] for tape, reference in references}
    labels = {file: sources.label(file) for file in files}
    return lambda: _events(tapes, labels), {labels[file]: sources.text(file) for file in files}


def _events(tapes: list[Recorded], labels: dict[str, str]) -> list[Event]:
    rows = [(rank, number, row) for rank, tape in enumerate(tapes) for number, row in enumerate(tape.table().tolist())]
    rows.sort(key=lambda entry: entry[2][Column.POSTED])
    started, received = _starts(rows), _receive_ends(rows)
    decoders = [_Decoder(rank, tape, labels) for rank, tape in enumerate(tapes)]
    return [
        decoders[rank].event(number, row, started.get(_meeting(rank, row)), received.get(_meeting(rank, row)))
        for rank, number, row in rows
    ]


def _meeting(rank: int, row: list[int]) -> tuple | None:
    """What the postings that belong together have in common."""
    kind, peer = row[Column.KIND], row[Column.PEER]
    if kind == Kind.COLLECTIVE:
        return row[Column.GROUP], row[Column.SEQUENCE]
    if kind in (Kind.SEND, Kind.RECV) and peer != ANY_RANK:
        ends = (rank, peer) if kind == Kind.SEND else (peer, rank)
        return row[Column.GROUP], *ends, row[Column.TAG], row[Column.SEQUENCE]
    return None


def _starts(rows: list[tuple[int, int, list[int]]]) -> dict[tuple | None, int]:
    """When the last side of each operation was posted, for those with all sides there."""
    posted: dict[tuple, list[int]] = {}
    needed: dict[tuple, int] = {}
    for rank, _, row in rows:
        if (key := _meeting(rank, row)) is not None:
            posted.setdefault(key, []).append(row[Column.POSTED])
            needed[key] = row[Column.SIZE] if row[Column.KIND] == Kind.COLLECTIVE else 2
    return {key: max(times) for key, times in posted.items() if len(times) >= needed[key]}


def _receive_ends(rows: list[tuple[int, int, list[int]]]) -> dict[tuple | None, int]:
    """When each message had arrived: a send is over then, also if its handle was never waited for."""
    return {
        _meeting(rank, row): row[Column.ENDED]
        for rank, _, row in rows
        if row[Column.KIND] == Kind.RECV and row[Column.ENDED]
    }


class _Decoder:
    def __init__(self, rank: int, tape: Recorded, labels: dict[str, str]) -> None:
        self._rank, self._tape, self._labels = rank, tape, labels
        self._json = lru_cache(maxsize=None)(lambda reference: json.loads(tape.blob(reference)))
        self._line = lru_cache(maxsize=None)(self._read_line)

    def _read_line(self, reference: int) -> Line | None:
        if not reference:
            return None
        file, number, function = self._json(reference)
        return Line(self._labels[file], number, function)

    def _tensors(self, reference: int) -> tuple:
        return raw.unpack(self._tape.blob(reference)) if reference else ()

    def event(self, number: int, row: list[int], started: int | None, received: int | None) -> Event:
        tensors = self._json(row[Column.TENSOR]) if row[Column.TENSOR] else []
        payload = self._tensors(row[Column.PAYLOAD])
        peer: Any = row[Column.PEER]
        ended = row[Column.ENDED] or (received if row[Column.KIND] == Kind.SEND else None) or None
        if started and ended:
            started = min(started, ended)  # the root of a broadcast may leave before the last rank comes
        return Event(
            rank=self._rank,
            index=number,
            kind=_KINDS[row[Column.KIND]],
            op=self._tape.blob(row[Column.OP]).decode(),
            group=tuple(self._json(row[Column.MEMBERS])) if row[Column.MEMBERS] else (),
            sequence=row[Column.SEQUENCE],
            peer=None if peer == -1 else peer,
            tag=row[Column.TAG],
            bytes=row[Column.BYTES],
            dtype=tensors[0][0] if tensors else "",
            shape=tuple(tensors[0][1]) if len(tensors) == 1 else ", ".join(str(tuple(t[1])) for t in tensors),
            posted=row[Column.POSTED],
            started=started,
            ended=ended,
            wait_from=row[Column.WAIT_FROM] or None,
            wait_to=row[Column.WAIT_TO] or None,
            step=row[Column.STEP],
            line=self._line(row[Column.LINE]),
            labels=self._json(row[Column.LABELS]) if row[Column.LABELS] else {},
            control=bool(row[Column.CONTROL]),
            payload=payload[0] if payload else None,
            arguments=self._tensors(row[Column.ARGUMENTS]),
        )
