"""What the ranks print, under the cell as it happens: each line with its rank in front, and never too many."""

from __future__ import annotations

import contextlib
import os
import sys

from dtcourse.cluster.crew import Member

LINES_SHOWN = 200  # a rank, a run
BYTES_KEPT = 1 << 20  # of a rank's output, for `run.outputs`


class Output:
    """The prints of one run. `shown`: lines of each rank; `taken`: bytes so far."""

    def __init__(self, world_size: int, shown: int = LINES_SHOWN) -> None:
        self._shown, self.taken = shown, 0
        self._kept = [bytearray() for _ in range(world_size)]
        self._unfinished = [b""] * world_size
        self._lines = [0] * world_size

    def read(self, member: Member) -> bool:
        """Show what is there; False if the rank has closed its output."""
        try:
            said = os.read(member.output, 1 << 16)
        except BlockingIOError:
            return True
        if said:
            self._take(member.rank, said)
        return bool(said)

    def finish(self, members: list[Member]) -> list[str]:
        """Show what is left; all that each rank printed, or the end of it."""
        for member in members:
            self._drain(member)
        for rank, rest in enumerate(self._unfinished):
            if rest:
                self._show(rank, [rest])
            if self._shown and (more := self._lines[rank] - self._shown) > 0:
                _write(f"[rank {rank}] ... and {more:,} more lines; run.outputs[{rank}] has the end of them\n")
        return [bytes(kept).decode(errors="replace") for kept in self._kept]

    def _drain(self, member: Member) -> None:
        left = 1 << 20  # more than a pipe holds: what a child of the rank still writes must not keep us here
        with contextlib.suppress(BlockingIOError):
            while left > 0 and (said := os.read(member.output, 1 << 16)):
                self._take(member.rank, said)
                left -= len(said)

    def _take(self, rank: int, said: bytes) -> None:
        kept = self._kept[rank]
        kept += said
        self.taken += len(said)
        if len(kept) > 2 * BYTES_KEPT:
            del kept[:-BYTES_KEPT]
        *lines, self._unfinished[rank] = (self._unfinished[rank] + said).split(b"\n")
        if len(self._unfinished[rank]) > BYTES_KEPT:  # a line without an end
            lines, self._unfinished[rank] = [*lines, self._unfinished[rank]], b""
        self._show(rank, lines)

    def _show(self, rank: int, lines: list[bytes]) -> None:
        room = max(0, self._shown - self._lines[rank])
        self._lines[rank] += len(lines)
        if shown := lines[:room]:
            _write("".join(f"[rank {rank}] {line[:2000].decode(errors='replace')}\n" for line in shown))


def _write(text: str) -> None:
    with contextlib.suppress(ValueError, OSError):  # the reader's own stdout may be closed
        sys.stdout.write(text)
        sys.stdout.flush()
