"""`Finding`: a difference between what an exercise asks for and what a run shows. `CheckFailed`: a test that failed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from dtcourse.events import Line
from dtcourse.pipeline.simulate import Timeline
from dtcourse.run import Run
from dtcourse.views import words


@dataclass(frozen=True, slots=True)
class Finding:
    """What was seen and what was expected, in words; the step at which the player shows it; the line, if known.

    `drawing`: a few lines of characters that show it better than a picture of the run would. `plans`: schedules of a
    pipeline, each under its name, that the picture shows in place of the run.
    """

    message: str
    step: int = 0
    rank: int | None = None
    line: Line | None = None
    drawing: str = ""
    plans: Mapping[str, Timeline] = field(default_factory=dict)


class CheckFailed(AssertionError):
    """A test failed. `run` and `step` are for the picture: None if there was no run. `drawing`, `plans` replace it."""

    def __init__(
        self,
        message: str,
        run: Run | None = None,
        step: int = 0,
        drawing: str = "",
        plans: Mapping[str, Timeline] | None = None,
    ) -> None:
        super().__init__(f"{message}\n{drawing}" if drawing else message)
        self.run, self.step, self.drawing, self.plans = run, step, drawing, plans or {}


class NotWritten(CheckFailed):
    """The function under test is still the stub that the exercise came with."""


def fail_on(run: Run, findings: Iterable[Finding], given: str | None = None) -> None:
    """Raise CheckFailed with the earliest of the findings, if there are any.

    `given`: what the ranks were given, in words, if it was not one tensor each.
    """
    __tracebackhide__ = True  # pytest: the test's own line is what matters
    found = sorted(findings, key=lambda f: (f.step, -1 if f.rank is None else f.rank))
    if not found:
        return
    first = found[0]
    began_with = [tensors[0] for tensors in run.given if tensors] or [e.arguments[0] for e in run.events if e.arguments]
    given = given or elements_each(began_with[0] if began_with else None)
    lines = [f"{situation(run.function, run.world_size, given)}: {first.message}."]
    if first.line:
        lines.append(f"  at {first.line.file}, line {first.line.number}:  {run.source_line(first.line)}")
    more = sorted({f.rank for f in found if f.step == first.step and f.rank not in (None, first.rank)})
    if more:
        lines.append(f"  ({words.ranks(more)}: not as expected there either)")
    raise CheckFailed("\n".join(lines), run, first.step, first.drawing, first.plans)


@contextmanager
def explained_by(findings: Callable[[Run], Iterable[Finding]], given: str | None = None) -> Iterator[None]:
    """A deadlock in here is told by the findings in its record, if there are any, and not by who waits for whom.

    If two ends of a message do not fit, it is told by findings that have a line: what is missing may have come later.
    """
    __tracebackhide__ = True
    try:
        yield
    except CheckFailed as failed:
        if failed.run is not None and failed.run.waits:
            fail_on(failed.run, findings(failed.run), given)
        elif failed.run is not None and (failed.run.failure or "").startswith("MismatchError"):
            fail_on(failed.run, [finding for finding in findings(failed.run) if finding.line], given)
        raise


def situation(function: str, world: int, given: str | None) -> str:
    """ "ring_all_reduce on 3 ranks, 7 elements each": what was called, and on what."""
    ranks = f"{function} on {number_of(world, 'rank')}"
    return f"{ranks}, {given}" if given else ranks


def elements_each(tensor: torch.Tensor | None) -> str | None:
    """What the ranks were given, if they were given tensors like this one."""
    return None if tensor is None else f"{number_of(tensor.numel(), 'element')} each"


def number_of(count: int, what: str) -> str:
    """ "1 message", "2 messages"."""
    return f"{count} {what}{'s' if count != 1 else ''}"
