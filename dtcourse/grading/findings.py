"""`Finding`: a difference between what an exercise asks for and what a run shows. `CheckFailed`: a test that failed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dtcourse.events import Line
from dtcourse.run import Run
from dtcourse.views import words


@dataclass(frozen=True, slots=True)
class Finding:
    """What was seen and what was expected, in words; the step at which the player shows it; the line, if known."""

    message: str
    step: int = 0
    rank: int | None = None
    line: Line | None = None


class CheckFailed(AssertionError):
    """A test failed. `run` and `step` are for the player; None if there was no run to show."""

    def __init__(self, message: str, run: Run | None = None, step: int = 0) -> None:
        super().__init__(message)
        self.run, self.step = run, step


class NotWritten(CheckFailed):
    """The function under test is still the stub that the exercise came with."""


def fail_on(run: Run, findings: Iterable[Finding]) -> None:
    """Raise CheckFailed with the earliest of the findings, if there are any."""
    __tracebackhide__ = True  # pytest: the test's own line is what matters
    found = sorted(findings, key=lambda f: (f.step, -1 if f.rank is None else f.rank))
    if not found:
        return
    first = found[0]
    sizes = [e.arguments[0].numel() for e in run.events if e.arguments]
    lines = [f"{situation(run.function, run.world_size, sizes[0] if sizes else None)}: {first.message}."]
    if first.line:
        lines.append(f"  at {first.line.file}, line {first.line.number}:  {run.source_line(first.line)}")
    more = sorted({f.rank for f in found if f.step == first.step and f.rank not in (None, first.rank)})
    if more:
        lines.append(f"  ({words.ranks(more)}: not as expected there either)")
    raise CheckFailed("\n".join(lines), run, first.step)


def situation(function: str, world: int, elements: int | None) -> str:
    """ "ring_all_reduce on 3 ranks, 7 elements each": what was called, and on what."""
    ranks = f"{function} on {number_of(world, 'rank')}"
    return ranks if elements is None else f"{ranks}, {number_of(elements, 'element')} each"


def number_of(count: int, what: str) -> str:
    """ "1 message", "2 messages"."""
    return f"{count} {what}{'s' if count != 1 else ''}"
