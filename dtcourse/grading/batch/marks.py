"""What one submission has earned in one exercise, as the grader keeps it: a file of JSON for each.

The number of points that can be had is the exercise's: a test that did not run has earned none, and counts.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from dtcourse.grading.outcome import Outcome
from dtcourse.grading.suite import Test


@dataclass(frozen=True, slots=True)
class Mark:
    """How one test ended. A hidden test keeps its message to itself in what a student gets."""

    test: str
    title: str
    outcome: Outcome
    earned: float
    points: float
    message: str = ""
    hidden: bool = False
    page: str | None = None  # the picture of the run, a file beside the student's page


@dataclass(frozen=True, slots=True)
class Marks:
    """One submission in one exercise.

    digest        of the files, the tests and the seed: the same digest means the same result
    problem       why there was nothing to test, or why the tests did not come to their end
    notes         what was left behind of the submission
    weaknesses    how this machine could not confine it: for the teacher
    """

    submission: str
    exercise: str
    digest: str
    seed: int
    tests: list[Mark]
    problem: str | None = None
    notes: list[str] = field(default_factory=list)
    weaknesses: list[str] = field(default_factory=list)

    @property
    def earned(self) -> float:
        return math.fsum(mark.earned for mark in self.tests)

    @property
    def possible(self) -> float:
        return math.fsum(mark.points for mark in self.tests)

    @property
    def first_failure(self) -> Mark | None:
        """What explains most: the first test that failed, or else the first that is not written or did not run."""
        missed = [mark for mark in self.tests if mark.outcome is not Outcome.PASSED and not mark.hidden]
        return next((mark for mark in missed if mark.outcome is Outcome.FAILED), missed[0] if missed else None)

    def save(self, file: Path) -> None:
        """Write it in one piece: a reader finds the old file or the new one."""
        file.parent.mkdir(parents=True, exist_ok=True)
        beside = file.with_suffix(".new")
        beside.write_text(json.dumps(asdict(self), indent=1, allow_nan=False), encoding="utf-8")
        os.replace(beside, file)

    @staticmethod
    def load(file: Path) -> Marks | None:
        """What `save` wrote; None if there is no such file, or one that nobody can read any more."""
        try:
            values = json.loads(file.read_text(encoding="utf-8"))
            tests = [Mark(**mark | {"outcome": Outcome(mark["outcome"])}) for mark in values.pop("tests")]
            return Marks(tests=tests, **values)
        except (OSError, ValueError, TypeError, KeyError):
            return None


def mark(test: Test, outcome: Outcome, message: str = "", share: float = 0.0, page: str | None = None) -> Mark:
    """The mark of a test that ended in this way, with `share` of its points."""
    earned = test.points * (1.0 if outcome is Outcome.PASSED else share)
    return Mark(test.name, test.title, outcome, earned, test.points, message, test.hidden, page)


def none_ran(tests: Sequence[Test]) -> list[Mark]:
    """The marks where nothing could be tested."""
    return [mark(test, Outcome.MISSING) for test in tests]
