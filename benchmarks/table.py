"""One line of the bench: what was measured, on both sides, and whether the ratio is what we ask of ourselves."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """`ours` and `peer` in the same unit; without a peer, `limit` is an absolute number in that unit.

    A row without a `limit` only informs. `at_least` is a limit from below, for what should meet a formula.
    """

    what: str
    unit: str
    ours: float
    limit: float | None
    peer: float | None = None
    peer_name: str = ""
    note: str = ""
    at_least: float = 0.0

    @property
    def measured(self) -> float:
        """The number that `limit` limits."""
        return self.ours / self.peer if self.peer is not None else self.ours

    @property
    def kept(self) -> bool:
        return self.limit is None or self.at_least <= self.measured <= self.limit


HEADER = f"{'what':58} {'ours':>12} {'peer':>26} {'measured':>10} {'at most':>8}"


def line(row: Row) -> str:
    peer = f"{row.peer:.4g} {row.unit} {row.peer_name}" if row.peer is not None else "-"
    verdict = "" if row.kept else "   MISSED"
    note = f"   ({row.note})" if row.note else ""
    limit = f"{row.limit:.3g}" if row.limit is not None else "-"
    ours = f"{row.ours:.4g} {row.unit}"
    return f"{row.what:58} {ours:>12} {peer:>26} {row.measured:>10.3g} {limit:>8}{verdict}{note}"


def alternate(first: Callable[[], object], second: Callable[[], object], rounds: int) -> tuple[float, float]:
    """Median seconds of two functions that take turns, so that a busy moment of the machine hits both."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for function, taken in zip((first, second), times, strict=True):
            start = time.perf_counter()
            function()
            taken.append(time.perf_counter() - start)
    return statistics.median(times[0]), statistics.median(times[1])
