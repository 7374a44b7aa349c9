"""`Result`: how one test of an exercise ended. `read_results`: from the files that the tests' process wrote."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from dtcourse.grading.suite import Test
from dtcourse.pipeline.actions import Action, Kind
from dtcourse.pipeline.simulate import Span, Timeline

if TYPE_CHECKING:
    from dtcourse.run import Run

RESULTS = "results.jsonl"  # written line by line: what is there when time is up still counts


class Outcome(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    NOT_WRITTEN = "not written yet"
    MISSING = "did not run"


@dataclass(frozen=True, slots=True)
class Result:
    """One test. `message` says what was seen and what was expected.

    `run` and `step` are what the picture shows, or the `plans`, if there are any. `share`: what part of the points
    is earned, 1 if it passed.
    """

    test: Test
    outcome: Outcome
    message: str = ""
    step: int = 0
    saved: bytes | None = None  # the run
    printed: tuple[str, ...] = ()  # by each rank, in the run that failed
    plans: Mapping[str, Timeline] = field(default_factory=dict)
    share: float = 0.0

    @property
    def passed(self) -> bool:
        return self.outcome is Outcome.PASSED

    @property
    def points(self) -> float:
        return self.test.points * self.share

    @property
    def run(self) -> Run | None:
        """Read when somebody asks for it: that needs torch, which takes its time to load."""
        if self.saved is None:
            return None
        from dtcourse.run import Run

        return Run.load(io.BytesIO(self.saved))


def read_results(folder: Path, tests: Sequence[Test], runs: bool = True) -> list[Result]:
    """A result for each of `tests`, in their order; those that nothing was written of are missing. `runs`: with them.

    Works also while the tests' process still writes.
    """
    lines: dict[str, dict] = {}
    if (file := folder / RESULTS).exists():
        for text in file.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True):
            if not text.endswith("\n"):
                break  # it is being written
            line = json.loads(text)
            lines[line["test"]] = line
    return [_result(test, lines.get(test.name), folder if runs else None) for test in tests]


def _result(test: Test, line: dict | None, folder: Path | None) -> Result:
    if line is None:
        return Result(test, Outcome.MISSING)
    saved = (folder / line["run"]).read_bytes() if folder and "run" in line else None
    return Result(
        test,
        Outcome(line["outcome"]),
        line.get("message", ""),
        line.get("step", 0),
        saved,
        tuple(line.get("printed", ())),
        {name: _plan(ranks) for name, ranks in line.get("plans", {}).items()},
        line.get("share", 0.0),
    )


def _plan(ranks: list) -> Timeline:
    """From plain lists, as JSON has them."""
    return Timeline(tuple(tuple(_span(*span) for span in spans) for spans in ranks))


def _span(action: list, start: float, end: float) -> Span:
    kind, microbatch, stage = action
    return Span(Action(Kind(kind), microbatch, stage), start, end)
