"""The process that runs the tests of an exercise on one submission after another, and says how each test ended.

It is the grader's own: what was handed in never runs here but in sandboxes, and all that comes back from there is data.
It is a process apart so that the batch goes on if it has to be ended. It reads an order, a line of JSON, and answers
with a line for each test as it ends, then with one that says so.
"""

from __future__ import annotations

import importlib
import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import TextIO

from dtcourse.grading import suite
from dtcourse.grading.check import at_a_glance
from dtcourse.grading.findings import CheckFailed, NotWritten
from dtcourse.grading.outcome import Outcome
from dtcourse.grading.sandbox.clusters import SandboxedClusters
from dtcourse.grading.submission import Submission
from dtcourse.views.page import write_page

LONGEST = 20_000  # characters of a message: it may show what the submission returned


@dataclass(frozen=True, slots=True)
class Order:
    """Grade `folder`/`exercise`.py; a picture of each run that failed goes to `pages`, a folder."""

    exercise: str
    folder: str
    pages: str
    seed: int


@dataclass(frozen=True, slots=True)
class Ended:
    """How one test ended: `share` of its points are earned, all of them if it passed."""

    test: str
    outcome: Outcome
    message: str = ""
    share: float = 0.0
    page: str | None = None


def main() -> None:
    """Serve orders until there are no more. What tests print goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    course = suite.COURSE
    sys.path.insert(0, str(course / suite.TESTS))
    orders: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(orders,), daemon=True).start()
    while True:
        serve(course, Order(**json.loads(orders.get())), answers)


def _listen(orders: queue.SimpleQueue[str]) -> None:
    """The batch may be killed at any moment: when nobody is there to give orders any more, all of this ends."""
    for line in sys.stdin:
        orders.put(line)
    os.killpg(os.getpgrp(), signal.SIGKILL)


def serve(course: Path, order: Order, answers: TextIO) -> None:
    def tell(**answer: object) -> None:
        answers.write(json.dumps(answer, allow_nan=False) + "\n")
        answers.flush()

    weaknesses: list[str] = []
    for ended in grade(course, order, weaknesses):
        tell(ended=asdict(ended))
    tell(done=True, weaknesses=weaknesses)


def grade(course: Path, order: Order, weaknesses: list[str]) -> Iterator[Ended]:
    """Run every test of the exercise. `weaknesses` gets what could not be confined, in sentences."""
    file = Path(order.folder) / f"{order.exercise}.py"
    tests = suite.tests_of(course, order.exercise)
    if found := at_a_glance(course, order.exercise, file, tests):
        yield from (Ended(result.test.name, result.outcome, result.message[:LONGEST]) for result in found)
        return
    module = importlib.import_module(f"test_{order.exercise}")
    with SandboxedClusters(seed=order.seed) as clusters:
        weaknesses += clusters.weaknesses
        submission = Submission(file, clusters, order.seed)
        for test in tests:
            yield run_test(module, test, submission, Path(order.pages))


def run_test(module: ModuleType, test: suite.Test, submission: Submission, pages: Path) -> Ended:
    """Run one test. What is no `CheckFailed` is a mistake of the test's own, and passes nobody."""
    function: Callable[[Submission], None] = getattr(module, test.name)
    submission.begin()
    try:
        function(submission)
    except CheckFailed as failed:
        outcome = Outcome.NOT_WRITTEN if isinstance(failed, NotWritten) else Outcome.FAILED
        page = None if outcome is Outcome.NOT_WRITTEN or test.hidden else _picture(failed, pages, test.name)
        return Ended(test.name, outcome, str(failed)[:LONGEST], submission.share, page)
    except Exception as problem:
        said = f"the test itself did not run to its end: {type(problem).__name__}: {problem}"
        return Ended(test.name, Outcome.MISSING, said)
    return Ended(test.name, Outcome.PASSED, share=1.0)


def _picture(failed: CheckFailed, pages: Path, name: str) -> str | None:
    """The page of the run that failed; runs in which nothing happened, or whose message is a drawing, have none."""
    run = failed.run
    if run is None or failed.drawing or not run.events:
        return None
    pages.mkdir(parents=True, exist_ok=True)
    return write_page(run, pages / f"{name}.html", failed.step).name


if __name__ == "__main__":
    main()
