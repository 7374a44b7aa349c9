"""A pytest plugin: writes how each test of an exercise ended, a line of JSON a test, as it happens.

`python -m pytest -p dtcourse.grading.plugin --results FOLDER ...` makes FOLDER/results.jsonl and, for a test that
failed, the run that shows why. `--while-open FD`: when the other end of this pipe closes, pytest ends at once.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

import dtcourse.cluster  # noqa: F401 - first of all that loads torch: the ranks' own process loads it meanwhile
from dtcourse.events import RETURN
from dtcourse.grading.findings import CheckFailed, NotWritten
from dtcourse.grading.outcome import RESULTS, Outcome
from dtcourse.grading.submission import Submission

PRINTED = 10_000  # characters kept of what a rank printed


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--results", type=Path, metavar="FOLDER", help="write the results for dtcourse's check here")
    parser.addoption("--while-open", type=int, metavar="FD", help="end when the other end of this pipe closes")


def pytest_configure(config: pytest.Config) -> None:
    if folder := config.getoption("--results"):
        config.pluginmanager.register(Results(folder))
    if pipe := config.getoption("--while-open"):
        threading.Thread(target=_end_with_the_other_side, args=(pipe,), daemon=True).start()


class Results:
    """Writes into a folder that only this user can read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._left: Counter[str] = Counter()  # test -> its cases that have not passed yet: one, or its parameters
        self._saved: dict[int, tuple[CheckFailed, str]] = {}  # a failure may be that of several tests

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._left.update(map(_name, session.items))

    def pytest_runtest_call(self, item: pytest.Item) -> None:
        if isinstance(tested := item.funcargs.get("submission"), Submission):
            tested.begin()

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[Any]) -> Generator[None, Any, None]:
        report = (yield).get_result()
        name = _name(item)
        # a test counts once: when all its cases have passed, or when the first does not pass or cannot be called
        if self._left[name] <= 0 or (report.when != "call" and report.passed):
            return
        self._left[name] = self._left[name] - 1 if report.passed else 0
        if self._left[name] > 0:
            return
        problem = call.excinfo.value if call.excinfo else None
        tested = item.funcargs.get("submission")
        share = tested.share if isinstance(problem, CheckFailed) and isinstance(tested, Submission) else 0.0
        self._write(name, report, problem, share)

    def _write(self, test: str, report: pytest.TestReport, problem: BaseException | None, share: float) -> None:
        outcome = Outcome.PASSED if report.passed else Outcome.FAILED
        line: dict[str, Any] = {"test": test, "outcome": outcome, "share": 1.0 if report.passed else share}
        if isinstance(problem, NotWritten):
            line["outcome"] = Outcome.NOT_WRITTEN
        if isinstance(problem, CheckFailed):
            line |= {"message": str(problem), "step": problem.step}
            if problem.plans:
                line["plans"] = {name: plan.ranks for name, plan in problem.plans.items()}
            if problem.run and not problem.drawing and any(e.arguments or e.kind != RETURN for e in problem.run.events):
                if id(problem) not in self._saved:
                    self._saved[id(problem)] = problem, problem.run.save(self._folder / f"{test}.run").name
                line["run"] = self._saved[id(problem)][1]
            if problem.run:
                line["printed"] = [text[:PRINTED] for text in problem.run.outputs]
        elif not report.passed:
            line["message"] = f"the test itself did not run to its end: {type(problem).__name__}: {problem}"
        with open(self._folder / RESULTS, "a", encoding="utf-8") as results:
            results.write(json.dumps(line) + "\n")


def _name(item: pytest.Item) -> str:
    """The name of the test's function: `item.name` has the parameters too."""
    return getattr(item, "originalname", item.name)


def _end_with_the_other_side(pipe: int) -> None:
    """The notebook's kernel may be killed at any moment; nothing of the check shall outlive it."""
    while os.read(pipe, 1024):
        pass
    os.killpg(os.getpgrp(), signal.SIGKILL)
