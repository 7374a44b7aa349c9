"""The handle of an operation on an emulated link: complete when the bytes are there *and* would have been."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from dtcourse.backends.deaths import died
from dtcourse.backends.ledger import Posting
from dtcourse.backends.link import ready, sleep_until
from dtcourse.backends.recorded_work import RecordedWork
from dtcourse.backends.recording import now
from dtcourse.backends.shared_memory import WORKER
from dtcourse.backends.shared_memory.work import NO_LIMIT
from dtcourse.backends.tape import Column, Kind

if TYPE_CHECKING:
    from dtcourse.backends.recorder import Recorder

_LOOK_EVERY = 0.0005  # seconds
_NEVER = 1 << 62  # ns


class DelayedWork(RecordedWork):
    """Like the one it extends, and waits for the time that the ports allow."""

    _bytes_there = False
    _over = 0  # when it was, by the link's clock (ns)
    _future: torch.futures.Future | None = None  # of an asynchronous collective

    def __init__(self, group: Recorder, inner: dist.Work, posting: Posting, *rest: Any) -> None:
        super().__init__(group, inner, posting, *rest)
        group.recording.link.clock.turn_back(ready(posting))  # to post it took no time

    def follow(self) -> DelayedWork:
        """Complete at the due time also if nobody waits: a thread does."""
        self._group.recording.following.add(self)
        self._future = torch.futures.Future()
        self._inner.get_future().add_done_callback(self._send_on)
        return self

    def _send_on(self, inner: torch.futures.Future) -> None:
        threading.Thread(target=self._arrive, args=(inner,), name=WORKER, daemon=True).start()

    def _arrive(self, inner: torch.futures.Future) -> None:
        try:
            value = inner.value()
            self._travel()
            self._complete(wait_from=0)
        except Exception as problem:
            self._future.set_exception(problem)
        else:
            self._future.set_result(value)

    def settle(self, patient: bool = False) -> None:
        if patient and self._inner.get_future().done():
            sleep_until(self._due())
        super().settle()

    def wait(self, timeout: timedelta = NO_LIMIT) -> bool:
        clock = self._group.recording.link.clock
        came = clock.time()
        done = super().wait(timeout)
        clock.turn_back(max(came, self._over))
        return done

    def _wait(self, timeout: timedelta) -> bool:
        """Raises RuntimeError if that takes longer than `timeout`."""
        limit = now() + int(timeout.total_seconds() * 1e9) if timeout != NO_LIMIT else _NEVER
        if not self._bytes_there:
            super()._wait(timeout)
            self._bytes_there = True
        self._over = self._travel(limit)
        return True

    def is_completed(self) -> bool:
        return self._inner.is_completed() and 0 < self._due() <= now() and super().is_completed()

    def get_future(self) -> torch.futures.Future:
        return self._future or super().get_future()

    def _travel(self, limit: int = _NEVER) -> int:
        """The bytes are there: stand still until they would have been. Until when; _NEVER: this takes what it takes.

        Raises RuntimeError at `limit` (ns).
        """
        if self._posting.kind == Kind.COLLECTIVE and self._posting.row[Column.CONTROL]:
            return _NEVER
        while not (due := self._due()):  # the root of a broadcast may have sent all before the last rank comes
            if now() > limit:
                break
            self._look_for_deaths()
            time.sleep(_LOOK_EVERY)
        sleep_until(min(due or limit, limit))
        if not due or due > limit:
            raise RuntimeError("the operation was not complete in time: over the link it takes longer")
        return due

    def _look_for_deaths(self) -> None:
        group, deaths = self._group.group.ranks, self._group.recording.deaths
        if deaths and (dead := set(group).intersection(deaths.pids().values())):
            raise died(min(dead), "this operation needs all ranks of its group")

    def _due(self) -> int:
        """When the bytes, which are there, would have been there (ns); 0 if that is not known yet."""
        recording, posting = self._group.recording, self._posting
        with recording.lock:
            if self._run is not recording.run:
                return 1
            link, ledger = recording.link, recording.ledger
            if due := link.due(posting):
                return due
            if posting.kind != Kind.COLLECTIVE:
                self._identify()
                ledger.refresh(posting.peer)  # before it reads of receives that were posted later
                ledger.read(posting.peer)
                ledger.refresh(posting.peer)
                if posting.partner:
                    link.match(posting)
                else:  # there are receives from any rank about
                    other = ledger.hears(posting) if posting.kind == Kind.SEND else None
                    link.match_alone(posting, ready(other) if other else now())
            return link.due(posting)
