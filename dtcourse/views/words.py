"""Small words that all views say the same way: sizes, times, lists of ranks, names of files. Knows nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import PurePath

from dtcourse.events import Line


def size(count: int) -> str:
    """Bytes in words: `96 B`, `12.35 kB`, `1.5 MB`."""
    if count < 10_000:
        return f"{count:,} B"
    power = min(int(math.log10(count) // 3), 3)
    return f"{count / 1000**power:.4g} {('kB', 'MB', 'GB')[power - 1]}"


def duration(microseconds: float) -> str:
    """A time in words: `12 µs`, `3.5 ms`, `1.2 s`."""
    for limit, unit, factor in ((1e3, "µs", 1), (1e6, "ms", 1e3)):
        if microseconds < limit:
            return f"{microseconds / factor:.4g} {unit}"
    return f"{microseconds / 1e6:.4g} s"


def time_unit(microseconds: float) -> tuple[str, float]:
    """The unit for an axis as long as this, and how many microseconds one of it is."""
    return ("µs", 1.0) if microseconds < 1e3 else ("ms", 1e3) if microseconds < 1e6 else ("s", 1e6)


def ranks(numbers: Iterable[int], world: int | None = None) -> str:
    """Ranks in words: `all ranks`, `rank 2`, `ranks 0, 1, 3`."""
    found = sorted(set(numbers))
    if world is not None and len(found) == world > 1:
        return "all ranks"
    return f"rank{'s' if len(found) != 1 else ''} {', '.join(map(str, found))}"


def some(parts: list[str], most: int, separator: str = ", ") -> str:
    """The first `most` of the parts, and how many more there are."""
    shown = separator.join(parts[:most])
    return shown if len(parts) <= most else f"{shown} and {len(parts) - most} more"


def step(number: int, count: int, run: str) -> tuple[int, str]:
    """A step of `count`, counted as Python counts (-1 is the last): its number, and which one it is in words.

    Raises ValueError, which says what the run has, for any other.
    """
    if not -count <= number < count:
        there = f"steps 0 to {count - 1}" if count > 1 else "one step, number 0"
        raise ValueError(f"step {number}: {run or 'this run'} has {there}; -1 is the last")
    number %= count
    if count == 1:
        return number, ""
    return number, f"the last of {count} steps" if number == count - 1 else f"step {number} of 0 to {count - 1}"


def file_label(file: str) -> str:
    """How a reader calls the file: `cell 3` and the like stay, a path becomes its name."""
    return PurePath(file).name or file


def place(line: Line | None) -> str:
    """`ring.py, line 14`; empty if the line is not known."""
    return f"{file_label(line.file)}, line {line.number}" if line else ""
