"""A `Run` in the Chrome trace format, for Perfetto: a process per rank, arrows for messages."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dtcourse.events import COLLECTIVE, HELD, MARK, RECV, REGION, RETURN, SEND, Event, channel

if TYPE_CHECKING:
    from dtcourse.run import Run

_TRACKS = {REGION: 0, MARK: 0, SEND: 100, RECV: 200, COLLECTIVE: 300}  # room for messages that overlap
_NAMES = {0: "work", 100: "send", 200: "receive", 300: "collective"}


def trace_events(run: Run) -> Iterator[dict[str, Any]]:
    """The entries of `traceEvents`. Times are microseconds from the first event."""
    shown = [e for e in run.events if e.kind not in (RETURN, HELD)]
    start = min((e.posted for e in shown), default=0)
    last = max((e.ended or e.posted for e in shown), default=0)
    tracks = _Tracks()
    ends: dict[tuple, dict[str, Any]] = {}
    sends: list[tuple[tuple, dict[str, Any]]] = []
    for rank in range(run.world_size):
        yield {"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank}"}}
    for e in shown:
        begins, finishes = e.posted - start, max(e.ended or last, e.posted + 1) - start
        entry = {"name": e.op, "cat": e.kind, "pid": e.rank, "ts": begins / 1000, "args": _details(run, e)}
        if e.kind == MARK:
            yield entry | {"ph": "i", "s": "t", "tid": 0}
            continue
        entry |= {"ph": "X", "tid": tracks.free(e, begins, finishes), "dur": (finishes - begins) / 1000}
        yield entry
        if e.kind == SEND:
            sends.append((channel(e), entry))
        elif e.kind == RECV and not e.pending:
            ends[channel(e)] = entry
    for number, (key, send) in enumerate(sends):
        if receive := ends.get(key):
            arrow = {"name": "message", "cat": "message", "id": number}
            yield arrow | {"ph": "s", "pid": send["pid"], "tid": send["tid"], "ts": send["ts"]}
            at = max(
                receive["ts"] + receive["dur"] / 2, send["ts"]
            )  # inside the slice: it belongs to what is around it
            yield arrow | {"ph": "f", "bp": "e", "pid": receive["pid"], "tid": receive["tid"], "ts": at}
    for rank, tid in sorted(tracks.used):
        yield {"ph": "M", "name": "thread_name", "pid": rank, "tid": tid, "args": {"name": _NAMES[tid - tid % 100]}}


def _details(run: Run, e: Event) -> dict[str, Any]:
    if e.kind in (REGION, MARK):
        finite = {k: v if not isinstance(v, float) or math.isfinite(v) else str(v) for k, v in e.labels.items()}
        return finite  # JSON has no NaN
    return {"peer": e.peer, "bytes": e.bytes, "step": e.step, "line": run.source_line(e.line), **e.labels}


class _Tracks:
    """Spreads the messages of a rank over tracks, since a viewer drops slices that overlap on one."""

    def __init__(self) -> None:
        self.used: dict[tuple[int, int], int] = {}  # (rank, track): when it is free again

    def free(self, e: Event, begins: int, finishes: int) -> int:
        track = _TRACKS[e.kind]
        if e.kind != REGION:  # regions of a rank are nested
            while self.used.get((e.rank, track), 0) > begins:
                track += 1
        self.used[e.rank, track] = finishes
        return track
