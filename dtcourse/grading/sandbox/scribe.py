"""In the grader: writes down what one jailed rank asked for, on a tape such as the ranks of a check keep themselves.

Sizes, dtypes, payloads, partners, steps and times are those that the grader saw. The rank's own claims (`Claims`) are
there to be shown.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import torch

from dtcourse.backends.ledger import Posting
from dtcourse.backends.recording import now
from dtcourse.backends.rows import Group, Place, Rows
from dtcourse.backends.tape import Column, Files, Kind, Writer
from dtcourse.events import CONTROL

LARGEST_CONTROL = 64  # bytes: headers and the like; what is larger counts as the message that it is
MOST_EVENTS = 20_000  # of a rank, in a run
MOST_LABELS = 4 << 20  # characters of labels: each event carries those of all regions that it is in


class Claims(NamedTuple):
    """What a rank says of one of its calls."""

    place: Place | None = None
    control: bool = False
    arguments: list[torch.Tensor] = []  # noqa: RUF012 - nobody changes it
    main: bool = True  # by the main thread: what another one does has not the labels of the main thread's regions


class TooMuch(ValueError):
    """A rank does more than is taken of it; says what it does."""


class Scribe:
    """Keeps the tape of `rank`. `rewind` begins a run."""

    def __init__(self, rank: int, files: Files) -> None:
        self._rank, self._files = rank, files
        self.tape = Writer(files)
        self._rows = Rows(self.tape)
        self.rewind()

    def rewind(self) -> None:
        self._files.erase()
        self.tape.rewind()
        self._steps_received = 0
        self._sequences: dict[Any, int] = {}
        self._regions: list[tuple[str, dict[str, Any], int]] = []  # name, labels, row
        self._labelled = 0  # characters

    # -- operations ---------------------------------------------------------------------------------------------

    def post(
        self, kind: int, op: str, group: Group, peer: int, tensors: list[torch.Tensor], claims: Claims,
        payload: list[torch.Tensor] = (), tag: int = 0, agree_on: Any = None,
    ) -> Posting:  # fmt: skip
        """`tensors`: what is sent or received, of which dtypes and shapes are read; `payload`: their values."""
        labels = self._labels() if claims.main else 0
        row = self._rows.operation(kind, op, group, peer, tensors, tag, agree_on, claims.place, labels)
        if kind == Kind.COLLECTIVE:
            row[Column.CONTROL] = claims.control or op == "barrier"
        elif row[Column.BYTES] <= LARGEST_CONTROL:
            row[Column.CONTROL] = claims.control or any(name == CONTROL for name, _, _ in self._regions)
        row[Column.STEP] = 0 if kind == Kind.RECV else self._steps_received + 1
        key = group.number if kind == Kind.COLLECTIVE else (kind, group.number, peer, tag)
        row[Column.SEQUENCE] = self._sequences[key] = self._sequences.get(key, -1) + 1
        row[Column.ARGUMENTS] = self.tape.tensors(claims.arguments)
        row[Column.PAYLOAD] = self.tape.tensors(payload)
        return Posting(self._rank, self._append(row), row)

    def waits(self, posting: Posting, aside: bool) -> int:
        """The rank now waits for it; since when. `aside`: and may do something else meanwhile."""
        since = now()
        if aside:
            self.tape.fill(posting.number, Column.ASIDE, 1)
        self.tape.fill(posting.number, Column.WAIT_FROM, since)
        return since

    def waited(self, posting: Posting, wait_from: int) -> None:
        """For something that is written down as complete already."""
        self.tape.fill(posting.number, Column.WAIT_FROM, wait_from)
        self.tape.fill(posting.number, Column.WAIT_TO, now())

    def hears(self, posting: Posting, sender: int) -> None:
        """A receive from any rank hears this one."""
        self.tape.fill(posting.number, Column.PEER, sender)

    def ended(self, posting: Posting, wait_from: int, received: list[torch.Tensor]) -> None:
        """The rank has got what it asked for. Called once for each operation."""
        at, row = now(), posting.row
        if posting.kind == Kind.RECV and (send := posting.partner):
            self._steps_received = max(self._steps_received, send.step)
            row[Column.STEP], row[Column.SEQUENCE] = send.step, send.sequence
            row[Column.PAYLOAD] = self.tape.tensors(received)
        self.tape.finish(
            posting.number, row[Column.SEQUENCE], row[Column.STEP], row[Column.PAYLOAD],
            wait_from, at if wait_from else 0, at,
        )  # fmt: skip

    def returned(self, arguments: list[torch.Tensor]) -> None:
        """The function has returned; how its arguments stand."""
        row = self._rows.row(Kind.RETURN, "return", None)
        row[Column.STEP] = self._steps_received + 1
        row[Column.ARGUMENTS] = self.tape.tensors(arguments)
        self.tape.fill(self._append(row), Column.ENDED, now())

    def _append(self, row: list[int]) -> int:
        if self.tape.rows >= MOST_EVENTS:
            raise TooMuch(f"has done more than {MOST_EVENTS:,} things in one run")
        row[Column.POSTED] = now()
        return self.tape.append(row)

    # -- regions and marks --------------------------------------------------------------------------------------

    def begin(self, name: str, labels: dict[str, Any], place: Place | None) -> None:
        """A region begins."""
        self._regions.append((name, labels, 0))
        row = self._rows.row(Kind.REGION, name, place, self._labels())
        self._regions[-1] = name, labels, self._append(row)

    def end(self) -> None:
        """The last region that has begun ends. Raises IndexError if there is none."""
        self.tape.fill(self._regions.pop()[2], Column.ENDED, now())

    def mark(self, name: str, values: dict[str, Any], place: Place | None) -> None:
        row = self._rows.row(Kind.MARK, name, place, self._labels(values))
        self.tape.fill(self._append(row), Column.ENDED, now())

    def _labels(self, values: dict[str, Any] | None = None) -> int:
        joined = {name: value for _, labels, _ in self._regions for name, value in labels.items()} | (values or {})
        if not joined:
            return 0
        text = json.dumps(joined)
        self._labelled += len(text)
        if self._labelled > MOST_LABELS:
            raise TooMuch(f"gave its regions and marks more than {MOST_LABELS >> 20} MB of labels")
        return self.tape.text(text)
