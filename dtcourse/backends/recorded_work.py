"""The handle of a recorded operation: it notes when it is waited for, and when it is complete."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from dtcourse.backends.ledger import Posting
from dtcourse.backends.recording import Recording, now
from dtcourse.backends.tape import Column
from dtcourse.errors import RankDied
from dtcourse.events import ANY_RANK

if TYPE_CHECKING:
    from dtcourse.backends.recorder import Recorder

Tensors = list[torch.Tensor]

_FOREVER = timedelta(0)  # what torch takes for "no limit of your own"


class RecordedWork(dist._Work):
    """The handle of an operation. Notes when it is waited for, and when it is complete."""

    def __init__(
        self, group: Recorder, inner: dist.Work, posting: Posting, tensors: Tensors, wait_from: int = 0
    ) -> None:
        super().__init__()
        self._wait_from = wait_from
        self._group, self._inner, self._posting, self._tensors = group, inner, posting, tensors
        self._run = group.recording.run
        self._open = True

    def follow(self) -> RecordedWork:
        """Note the completion also if nobody waits (DistributedDataParallel never does)."""
        self._group.recording.following.add(self)
        self._inner.get_future().add_done_callback(lambda _: self.settle())
        return self

    def settle(self, patient: bool = False) -> None:
        """Note the completion now, if it happened and its callback is still on the way.

        `patient`: there is time to wait for it a little, should it be late on purpose.
        """
        future = self._inner.get_future()
        if future.done() and not _failed(future):
            self._complete(wait_from=0)

    def wait(self, timeout: timedelta = _FOREVER) -> bool:
        recording = self._group.recording
        if self._run is not recording.run or not self._open:
            return self._inner.wait(timeout)
        recording.let_go()
        # with a limit it will go on by itself: nobody shall take it for stuck
        wait_from = self._wait_from or (begin_to_wait(recording, self._posting) if timeout == _FOREVER else now())
        try:
            done = self._wait(timeout)
        except RankDied as death:
            self._lose(wait_from, death)
            raise
        self._complete(wait_from)
        recording.thread.waited += now() - wait_from
        return done

    def _wait(self, timeout: timedelta) -> bool:
        return self._inner.wait(timeout)

    def _lose(self, wait_from: int, death: RankDied) -> None:
        recording = self._group.recording
        with recording.lock:
            if self._run is recording.run and self._open:
                self._open = False
                recording.following.discard(self)
                recording.lost(self._posting, wait_from, death.rank)

    def _complete(self, wait_from: int, ended: torch.cuda.Event | None = None) -> None:
        recording, posting = self._group.recording, self._posting
        with recording.lock:  # so that no run ends, and no tape is erased, between the question and the writing
            if self._run is not recording.run:
                return
            if not self._open:
                if wait_from:
                    recording.tape.fill(posting.number, Column.WAIT_FROM, wait_from)
                    recording.tape.fill(posting.number, Column.WAIT_TO, now())
                return
            self._open = False
            recording.following.discard(self)
            self._identify()
            recording.ended(posting, wait_from, self._tensors, ended)

    def _identify(self) -> None:
        """A receive from any rank has its bytes: note whose."""
        if self._posting.peer == ANY_RANK:
            sender = self._group.group.ranks[self._inner._source_rank()]
            self._group.recording.tape.fill(self._posting.number, Column.PEER, sender)
            self._group.recording.ledger.heard(self._posting, sender)

    def is_completed(self) -> bool:
        try:
            if not self._inner.is_completed():
                return False
        except RankDied as death:
            self._lose(0, death)
            raise
        self._complete(wait_from=0)  # whoever asks until it is so need not wait
        return True

    def get_future(self) -> torch.futures.Future:
        return self._inner.get_future()

    def result(self) -> Tensors:
        return self._inner.result()

    def exception(self) -> Any:
        return self._inner.exception()

    def is_success(self) -> bool:
        return self._inner.is_success()

    def synchronize(self) -> None:
        self._inner.synchronize()

    def source_rank(self) -> int:
        return self._inner._source_rank()

    _source_rank = source_rank


def _failed(future: torch.futures.Future) -> bool:
    try:
        future.value()
    except Exception:
        return True
    return False


def begin_to_wait(recording: Recording, posting: Posting) -> int:
    """Let others see that this rank waits; since when."""
    recording.waits.begin(posting.number)
    since = now()
    recording.tape.fill(posting.number, Column.WAIT_FROM, since)
    return since
