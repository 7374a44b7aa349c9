"""`check("ring")`: runs the tests of an exercise on the reader's file, in a process of their own, and reports."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from dtcourse.grading import suite
from dtcourse.grading.glance import glance
from dtcourse.grading.outcome import RESULTS, Outcome, Result, read_results
from dtcourse.grading.progress import progress
from dtcourse.grading.report import Report

TIME_LIMIT = 120.0  # seconds for all tests together
OUTPUT = "output"  # what pytest wrote
_LOOK = 0.1  # seconds between two looks at the results


def check(name: str, folder: str | Path | None = None, time_limit: float = TIME_LIMIT) -> Report:
    """Run the tests of the exercise `name` on `folder`/`name`.py (default: exercises/ of the course).

    The file is imported freshly, in other processes: it can neither hang nor change this one. Raises ValueError if
    there is no such exercise, and FileNotFoundError if there is no such file.
    """
    course = suite.course_folder()
    tests = suite.tests_of(course, name)
    file = _file(course, name, folder)
    start = time.monotonic()
    if found := at_a_glance(course, name, file, tests):
        return Report(name, _relative(file), found, time.monotonic() - start)
    with tempfile.TemporaryDirectory(prefix="dtcourse-check-") as results:  # of mode 0700
        shown = progress()
        try:
            told = lambda: shown.show(name, read_results(Path(results), tests, runs=False))  # noqa: E731
            problem = _run_tests(course, name, file, Path(results), time_limit, told)
        finally:
            shown.end()
        found = read_results(Path(results), tests)
        if problem is None and any(result.outcome is Outcome.MISSING for result in found):
            problem = "Some tests did not run:\n" + _said(Path(results))
        return Report(name, _relative(file), found, time.monotonic() - start, problem, shown)


def check_in_terminal(name: str, folder: str | Path | None = None) -> int:
    """The same, printed; 0 if everything passed, 1 if not, 2 if there is no such exercise or file."""
    try:
        report = check(name, folder)
    except (ValueError, FileNotFoundError) as problem:
        print(problem, file=sys.stderr)
        return 2
    print(report)
    return 0 if report.passed else 1


def _file(course: Path, name: str, folder: str | Path | None) -> Path:
    """The reader's file. Raises FileNotFoundError if there is none."""
    place = Path(folder or course / "exercises").resolve()
    if place.is_file():
        raise FileNotFoundError(f"{place} is a file: name the folder that it is in")
    if not place.is_dir():
        raise FileNotFoundError(f"there is no folder {place}")
    if not (place / f"{name}.py").is_file():
        raise FileNotFoundError(f"there is no file {name}.py in {place}")
    return place / f"{name}.py"


def at_a_glance(course: Path, name: str, file: Path, tests: list[suite.Test]) -> list[Result] | None:
    """The results, if the file can be seen to pass no test at all: then nothing has to be started."""
    functions = suite.functions_of(course, name)
    if not all(functions.values()):
        return None  # a test that runs none of them may pass
    demanded = list(dict.fromkeys(function for found in functions.values() for function in found))
    seen = glance(file, demanded, [course])
    if seen.problem:
        return [Result(test, Outcome.FAILED, seen.problem) for test in tests]
    if not seen.stubs:
        return None
    return [Result(test, Outcome.NOT_WRITTEN, seen.stubs[functions[test.name][0]]) for test in tests]


def _run_tests(
    course: Path, name: str, file: Path, results: Path, time_limit: float, told: Callable[[], None]
) -> str | None:
    """Run pytest; what kept it from running the tests to their end, or None."""
    reading, holding = os.pipe()  # if this process dies, however it does, pytest sees that the pipe has closed
    command = [
        sys.executable, "-m", "pytest", str(suite.tests_file(course, name)), "--impl", str(file),
        "-p", "dtcourse.grading.plugin", "--results", str(results), "--while-open", str(reading),
        "-p", "no:cacheprovider", "--confcutdir", str(course / suite.TESTS), "-q", "--tb=short",
    ]  # fmt: skip
    # plugins that happen to be installed are no part of the tests, and cost time
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
    with open(results / OUTPUT, "wb") as output:
        process = subprocess.Popen(
            command, cwd=course, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            pass_fds=[reading], start_new_session=True,  # a session: so that it can be ended with all that it started
        )  # fmt: skip
    try:
        code = _wait(process, time_limit, results / RESULTS, told)
    except subprocess.TimeoutExpired:
        return f"The tests were not done after {time_limit:g} s, and were ended: is there an endless loop?"
    finally:  # the stop button, too
        _end(process)
        os.close(reading)
        os.close(holding)
    passed_or_failed = (0, 1)
    return None if code in passed_or_failed else f"pytest ended with code {code}:\n{_said(results)}"


def _wait(process: subprocess.Popen[bytes], time_limit: float, results: Path, told: Callable[[], None]) -> int:
    """Wait for its end, and tell each time that there are more results. The process's exit code."""
    end, size = time.monotonic() + time_limit, -1
    while True:
        now = results.stat().st_size if results.exists() else 0
        if now != size:
            size = now
            told()
        left = end - time.monotonic()
        try:
            return process.wait(max(0.0, min(_LOOK, left)))
        except subprocess.TimeoutExpired:
            if left <= _LOOK:
                raise


def _said(results: Path) -> str:
    """The end of what pytest wrote."""
    return "\n".join((results / OUTPUT).read_text(errors="replace").strip().splitlines()[-20:])


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and its group; the ranks end with the process."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _relative(file: Path) -> str:
    relative = os.path.relpath(file)
    return relative if not relative.startswith(os.path.join("..", "..")) else str(file)
