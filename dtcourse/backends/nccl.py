"""NCCL under the recorder: what it refuses, what it would hang on, and waits that are waits.

NCCL queues an operation on a stream of the GPU and lets the host go on; `wait` only makes another stream wait. Here a
wait is one of the host, too: so a hang is found on the reader's line that waits, and a step is known when it is over.

Messages that NCCL is given one by one run one after the other: two ranks that both send first hang, although each has
a receive to come. So they are held back until the rank waits for anything, or enters a collective, and then begin
together, as dist.batch_isend_irecv would begin them.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from dtcourse.backends.device_clock import until
from dtcourse.backends.ledger import Posting
from dtcourse.backends.recorded_work import RecordedWork, Tensors, begin_to_wait
from dtcourse.backends.recorder import Enter, Recorder


class NcclRecorder(Recorder):
    """A recorder around a group of NCCL."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args, StreamWork)
        self._strict = True  # there are no tags, and no receive from any
        self._held_back: list[tuple[StreamWork, Enter]] = []

    def _begin(self, enter: Enter, posting: Posting, tensors: Tensors) -> dist.Work:
        work = StreamWork(self, None, posting, tensors)
        self._held_back.append((work, enter))
        self.recording.holding_back.add(self)
        return work

    def _collective(self, *args: Any, **kwargs: Any) -> dist.Work:
        self.let_go()
        return super()._collective(*args, **kwargs)

    def let_go(self) -> None:
        """Begin the messages that were held back, all together."""
        messages, self._held_back = self._held_back, []
        self.recording.holding_back.discard(self)
        if messages:
            self.inner._start_coalescing(self._device)
            for _, enter in messages:
                enter()
            together = self.inner._end_coalescing(self._device)
            for work, _ in messages:
                work.is_part_of(together)


class StreamWork(RecordedWork):
    """The handle of an operation on a stream."""

    _group: NcclRecorder
    _arrival: torch.cuda.Event | None = None  # when it was done, if nobody waited

    def is_part_of(self, batch: dist.Work) -> None:
        self._inner = batch

    def _wait(self, timeout: timedelta) -> bool:
        done = self._inner.wait(timeout)
        until(self._group.recording.clock.event())
        return done

    def is_completed(self) -> bool:
        self._group.recording.let_go()
        return super().is_completed()

    def follow(self) -> StreamWork:
        self._group.recording.following.add(self)
        self._inner.get_future().add_done_callback(self._note_arrival)  # runs on a stream that waits for it
        return self

    def _note_arrival(self, _: torch.futures.Future) -> None:
        self._arrival = self._group.recording.clock.event()

    def settle(self, patient: bool = False) -> None:
        recording = self._group.recording
        if self._open and self._run is recording.run and self._arrival is not None:
            wait_from = begin_to_wait(recording, self._posting)
            until(self._arrival)
            self._complete(wait_from, self._arrival)


def connect(group: dist.ProcessGroup, device: torch.device) -> None:
    """Let NCCL make its communicator while all ranks are here: made at the first message, it would wait for all."""
    group.allreduce([torch.zeros(1, device=device)]).wait()
    torch.cuda.synchronize(device)
