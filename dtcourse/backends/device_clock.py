"""Times of a GPU. The host's clock says when work was asked for; when it was done, only CUDA events know.

An event is recorded among the work of a stream and read when the run is over. `elapsed_time` to one event at the
beginning of the run, at which host and device stood still together, puts all of them on the host's axis.
"""

from __future__ import annotations

import time

import torch

from dtcourse.backends.tape import Writer

now = time.perf_counter_ns


class DeviceClock:
    """The clock of the GPU `device`, for the events of one run after the other."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stamps: list[tuple[int, int, torch.cuda.Event]] = []

    def rewind(self) -> None:
        """Begin a run: host and device stand still together."""
        self._stamps.clear()
        self._start = torch.cuda.Event(enable_timing=True)
        self._start.record()
        self._start.synchronize()
        self._start_on_host = now()

    def event(self) -> torch.cuda.Event:
        """An event after what the current stream has been given so far."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def stamp(self, row: int, column: int, event: torch.cuda.Event | None = None) -> None:
        """`column` of `row` shall be the time of `event`, or of all that the current stream has been given so far."""
        self._stamps.append((row, column, event or self.event()))

    def resolve(self, tape: Writer) -> None:
        """Write the times of all events that have happened."""
        for row, column, event in self._stamps:
            if event.query():
                tape.fill(row, column, self._start_on_host + int(self._start.elapsed_time(event) * 1e6))
        self._stamps.clear()


def until(event: torch.cuda.Event) -> None:
    """Wait on the host, letting other threads and processes run. `event.synchronize()` would keep a core busy."""
    pause = 0.0
    while not event.query():
        time.sleep(pause)
        pause = min(0.002, pause + 0.00002)
