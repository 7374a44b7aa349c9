"""What one rank records: its tape, its view of the others' tapes, the reader's regions, and the count of steps.

An event must cost microseconds, so the part of a row that is the same each time (name, group, peer, sizes, line)
is made once and copied.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import CodeType
from typing import TYPE_CHECKING, Any

import torch

from dtcourse.backends import strict
from dtcourse.backends.deaths import Deaths
from dtcourse.backends.device_clock import DeviceClock, until
from dtcourse.backends.ledger import Ledger, Posting
from dtcourse.backends.lines import innermost
from dtcourse.backends.rows import Group, Place, Rows, number
from dtcourse.backends.tape import Column, Files, Kind, Reader, Writer
from dtcourse.backends.waits import Waits
from dtcourse.errors import MismatchError
from dtcourse.events import ANY_RANK, CONTROL, WAIT

if TYPE_CHECKING:
    from dtcourse.backends.link import EmulatedLink

now = time.perf_counter_ns


class Recording:
    """The record of one rank. One object lives as long as the process; `rewind` begins a run."""

    def __init__(self, rank: int, tapes: list[Files], gate: int, strict: bool, device: torch.device) -> None:
        self.rank, self.device = rank, device
        self.strict = strict  # refuse what NCCL would refuse
        self.clock = DeviceClock(device) if device.type == "cuda" else None
        self.slowness = 1.0  # outermost regions take so many times as long
        self.link: EmulatedLink | None = None
        self.tape = Writer(tapes[rank])
        self._made = Rows(self.tape)
        self.ledger = Ledger([Reader(files) for files in tapes], me=rank)
        self.lock = threading.RLock()
        self.waits = Waits(self.tape, self.lock)
        self._gate = gate
        self.deaths = Deaths(rank, gate)
        self.rewind()
        self.run: object | None = None  # nothing is recorded between runs

    def rewind(self, watched: tuple[torch.Tensor, ...] | None = None, held: bool = False) -> None:
        """Begin a run. `watched`: keep payloads, and these tensors at each call. `held`: ask the gate for each step."""
        self.run = object()  # a late completion of an earlier run has another one
        self.tape.rewind()
        self.ledger.rewind()
        self.waits.rewind()
        self.pending = 0
        self.holding_back: set[Any] = set()  # groups that begin messages together
        self.following: set[Any] = set()  # asynchronous collectives whose completion nobody may wait for
        if self.clock:
            self.clock.rewind()
        self.steps_received = 0  # the highest step among completed receives
        self.thread = _Thread()
        if self.link is not None:
            self.link.rewind()
        self._watched = watched
        self._held = held
        self._rows: dict[tuple, list[int]] = {}
        self._readers_code: dict[CodeType, bool] = {}  # every run brings code of its own
        self._sequences: dict[tuple, int] = {}

    # -- operations ---------------------------------------------------------------------------------------------

    def post(
        self,
        kind: int,
        op: str,
        group: Group,
        peer: int,
        step: int,
        tensors: list[torch.Tensor],
        tag: int = 0,
        agree_on: Any = None,
    ) -> Posting:
        """Publish an operation, and compare it with what the other ranks have published.

        `agree_on`: what, besides the operation itself, has to be equal on all ranks. Raises RanksDisagree.
        """
        came = self.link.clock.time() if self.link is not None else 0
        with self.lock:  # a rank may have several threads: number, row and ledger belong together
            code, line, control = innermost(self._readers_code)
            thread = self.thread
            alike = kind, op, group, peer, tag, agree_on, code, line, control, thread.labels
            for tensor in tensors:
                alike += (tensor.dtype, tensor.shape)
            row = self._rows.get(alike)
            if row is None:
                place = _place(code, line)
                row = self._made.operation(kind, op, group, peer, tensors, tag, agree_on, place, thread.labels)
                self._rows[alike] = row
            row = row.copy()
            row[Column.CONTROL] |= control or thread.control > 0
            row[Column.BATCHED] = thread.batched
            row[Column.STEP] = step
            row[Column.SEQUENCE] = self._next((kind, group.number, peer, tag) if kind != Kind.COLLECTIVE else group)
            if self._watched is not None:
                row[Column.ARGUMENTS] = self.tape.tensors(self._watched)
                row[Column.PAYLOAD] = 0 if kind == Kind.RECV else self.tape.tensors(tensors)
            if self.link is not None:
                self.ledger.refresh(peer)
                row[Column.LAG] = now() - came
            posting = Posting(self.rank, self.append(row), row)
            if self.clock and on_device(tensors):
                self.clock.stamp(posting.number, Column.POSTED)
            self.pending += 1
            self._compare(posting, group.ranks if kind == Kind.COLLECTIVE else (peer,), group.strict)
            if self.link is not None:
                self.link.match(posting, op, group.ranks)
            return posting

    def _compare(self, posting: Posting, others: Sequence[int], strict_group: bool) -> None:
        ledger = self.ledger
        ledger.add(posting)
        for other in others:
            if other >= 0 and other != self.rank:
                ledger.read(other)
        if strict_group and posting.kind != Kind.COLLECTIVE and not self.thread.batched and ledger.crossing(posting):
            raise strict.Refused(strict.CROSSING.format(other=posting.peer, what=("send", "receive")[posting.kind - 1]))
        if ledger.disagreements:
            first, second = ledger.disagreements[0]
            raise RanksDisagree((first.rank, first.number), (second.rank, second.number))

    def ended(
        self, posting: Posting, wait_from: int, received: list[torch.Tensor], ended: torch.cuda.Event | None = None
    ) -> None:
        """The operation is complete, on a GPU at `ended`. Called once for each."""
        at, row = now(), posting.row
        self.waits.end(posting.number)
        if posting.kind == Kind.RECV:
            self.ledger.read(posting.peer)  # the send was posted before, so by now the receive has its partner
            if send := posting.partner:
                self.steps_received = max(self.steps_received, send.step)
                row[Column.STEP], row[Column.SEQUENCE] = send.step, send.sequence
            if self._watched is not None:
                row[Column.PAYLOAD] = self.tape.tensors(received)
        self.tape.finish(
            posting.number, row[Column.SEQUENCE], row[Column.STEP], row[Column.PAYLOAD],
            wait_from, at if wait_from else 0, at,
        )  # fmt: skip
        if self.clock and on_device(received):
            self.clock.stamp(posting.number, Column.ENDED, ended)
        self.pending -= 1

    def lost(self, posting: Posting, wait_from: int, dead: int) -> None:
        """The operation can never complete, because the rank `dead` has died. Called once for each."""
        with self.lock:
            self.waits.end(posting.number)
            if posting.kind != Kind.COLLECTIVE and posting.peer == ANY_RANK:
                self.tape.fill(posting.number, Column.PEER, dead)
                self.ledger.heard(posting, dead)
            if wait_from:
                self.tape.fill(posting.number, Column.WAIT_FROM, wait_from)
                self.tape.fill(posting.number, Column.WAIT_TO, now())
            self.pending -= 1

    def _next(self, key: tuple) -> int:
        number = self._sequences.get(key, 0)
        self._sequences[key] = number + 1
        return number

    def append(self, row: list[int]) -> int:
        """Stamp the row with the time and publish it; its number."""
        with self.lock:
            row[Column.POSTED] = now()
            return self.tape.append(row)

    def _row(self, kind: int, op: str, code: CodeType | None, line: int) -> list[int]:
        return self._made.row(kind, op, _place(code, line), self.thread.labels)

    # -- steps --------------------------------------------------------------------------------------------------

    def hold(self, step: int) -> None:
        """In a held run: stand still until the reader's process lets the ranks take `step`."""
        if self._held and self._allowed() < step:
            row = self._row(Kind.HELD, "held", *innermost(self._readers_code)[:2])
            row[Column.STEP] = step
            row[Column.ARGUMENTS] = self.tape.tensors(self._watched or ())
            number = self.append(row)
            while self._allowed() < step:
                time.sleep(0.002)
            self.tape.fill(number, Column.ENDED, now())
            self.thread.waited += now() - row[Column.POSTED]

    def _allowed(self) -> int:
        return int.from_bytes(os.pread(self._gate, 8, 0), sys.byteorder)

    def end(self, returned: bool) -> None:
        """The run is over: record nothing more. In a watched run, keep how the tensors stand if it has `returned`."""
        self.settle(returned)
        if returned and self._watched is not None:
            row = self._row(Kind.RETURN, "return", None, 0)
            row[Column.STEP] = self.steps_received + 1
            row[Column.ARGUMENTS] = self.tape.tensors(self._watched)
            self._instant(row)
        if returned and self.clock:
            until(self.clock.event())
            self.clock.resolve(self.tape)
        with self.lock:
            self.run = None

    def settle(self, patient: bool = True) -> None:
        """Note which of the collectives that nobody waited for are complete; on a GPU, wait for them."""
        self.let_go()
        for work in list(self.following):
            work.settle(patient)

    def let_go(self) -> None:
        """Begin the messages that were held back: this rank is about to wait, and others may wait for them."""
        for group in list(self.holding_back):
            group.let_go()

    # -- what the reader adds (`dtcourse.events.Sink`) -------------------------------------------------------------

    @contextmanager
    def region(self, name: str, labels: dict[str, Any]) -> Iterator[None]:
        thread = self.thread
        before, waited = thread.labels, thread.waited
        thread.regions.append(labels)
        thread.control += name == CONTROL
        if labels:
            thread.labels = self._joined_labels({})
        run, number = self.run, self.append(row := self._row(Kind.REGION, name, *innermost(self._readers_code)[:2]))
        if self.clock:
            self.clock.stamp(number, Column.POSTED)
        try:
            yield
            if name == WAIT:
                thread.waited = waited + now() - row[Column.POSTED]
            if self.slowness > 1 and len(thread.regions) == 1 and not thread.control:
                if self.clock:
                    until(self.clock.event())
                worked = now() - row[Column.POSTED] - (thread.waited - waited)
                time.sleep(worked * (self.slowness - 1) / 1e9)
        finally:
            if run is self.run:
                self.tape.fill(number, Column.ENDED, now())
                if self.clock:
                    self.clock.stamp(number, Column.ENDED)
                thread.regions.pop()
                thread.control -= name == CONTROL
                thread.labels = before

    def mark(self, name: str, values: dict[str, Any]) -> None:
        row = self._row(Kind.MARK, name, *innermost(self._readers_code)[:2])
        row[Column.LABELS] = self._joined_labels(values)
        self._instant(row)

    def _joined_labels(self, values: dict[str, Any]) -> int:
        joined = {name: value for labels in (*self.thread.regions, values) for name, value in labels.items()}
        return self.tape.text(json.dumps(joined, default=number)) if joined else 0

    def _instant(self, row: list[int]) -> None:
        self.tape.fill(self.append(row), Column.ENDED, now())


class _Thread(threading.local):
    """What belongs to one thread of the rank: each has its own, and begins with this."""

    def __init__(self) -> None:
        self.regions: list[dict[str, Any]] = []  # the labels of those that are open
        self.control = 0  # how many of them are called "control"
        self.labels = 0  # a reference to all of their labels
        self.waited = 0  # ns, for other ranks and other threads
        self.batched = False  # inside batch_isend_irecv


def on_device(tensors: list[torch.Tensor]) -> bool:
    return any(tensor.is_cuda for tensor in tensors)


def _place(code: CodeType | None, line: int) -> Place | None:
    return (code.co_filename, line, code.co_name) if code else None


class RanksDisagree(MismatchError):
    """Raised in a rank. The reader's process puts it into words: it can read all tapes."""

    def __init__(self, first: tuple[int, int], second: tuple[int, int]) -> None:
        super().__init__(f"rank {first[0]} and rank {second[0]} disagree on what they do together")
        self.first, self.second = first, second

    def __reduce__(self) -> tuple:
        return RanksDisagree, (self.first, self.second)
