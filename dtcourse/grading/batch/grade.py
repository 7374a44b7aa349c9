"""`grade`: all submissions of a class, several at a time, each in worker processes that can be ended.

Whatever one submission does costs that submission alone: it is ended at its time limit, and the batch goes on. Each
result is written as soon as it is there. A batch that was interrupted, however it was, goes on with what is missing;
files, tests or seed that have changed are graded again, and what that changed is told.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import queue
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from dtcourse.grading import suite
from dtcourse.grading.batch.intake import Source, Taken, Unreadable, sources, take
from dtcourse.grading.batch.marks import Mark, Marks, mark, none_ran
from dtcourse.grading.outcome import Outcome

TIME_LIMIT = 120.0  # seconds for all tests of an exercise: twenty times what a slow solution takes
STUDENTS, SEED = "submissions", "seed.txt"  # in the folder of the results


@dataclass(frozen=True, slots=True)
class Changed:
    """What a regrade has changed."""

    submission: str
    exercise: str
    before: float
    after: float


@dataclass(frozen=True)
class Graded:
    """A class, graded: the marks by submission and exercise, and what was different the last time."""

    exercises: list[str]
    marks: dict[str, list[Marks]]  # submission -> one for each exercise, in their order
    changes: list[Changed]
    kept: int  # results of an earlier run that still hold


def grade(
    submissions: Path,
    out: Path,
    exercises: Sequence[str] = (),
    jobs: int = 1,
    seed: int | None = None,
    time_limit: float = TIME_LIMIT,
    told: Callable[[int, int], None] = lambda done, of: None,
) -> Graded:
    """Grade every submission in the folder `submissions`; results go to `out`, a folder for this user alone.

    exercises    those to grade; none: each that at least one submission has a file for
    jobs         how many submissions at a time
    seed         of the delays in which the grader passes messages on, and of what else is drawn. None: the one that an
                 earlier run has left in `out`, or a new one that nobody can guess
    time_limit   seconds for one exercise of one submission
    told         is called with how many of all are done, each time

    Raises ValueError if there is nothing to grade, no such exercise, or `out` lies among the submissions.
    """
    out = out.resolve()  # the workers have a working folder of their own
    everybody = _everybody(submissions, out)
    exercises = list(exercises) or _found(everybody)
    tests = {name: suite.tests_of(suite.COURSE, name) for name in exercises}
    out.mkdir(parents=True, exist_ok=True, mode=0o700)
    os.chmod(out, 0o700)
    seed = _kept(seed, out / SEED)
    work = [(source, name) for source in everybody for name in exercises]
    finished: dict[tuple[str, str], Marks] = {}
    changes, kept = [], 0
    with Workers(jobs, time_limit) as workers, ThreadPoolExecutor(jobs) as pool:
        jobs_of = [pool.submit(_one, workers, source, name, tests[name], out, seed) for source, name in work]
        try:
            for done, future in enumerate(as_completed(jobs_of), 1):
                marks, before = future.result()
                finished[marks.submission, marks.exercise] = marks
                kept += before is marks
                if before is not None and before.earned != marks.earned:
                    changes.append(Changed(marks.submission, marks.exercise, before.earned, marks.earned))
                told(done, len(work))
        except BaseException:  # the stop key: what has begun is ended, what is done is kept
            pool.shutdown(wait=False, cancel_futures=True)
            workers.end()
            raise
    marks = {source.name: [finished[source.name, name] for name in exercises] for source in everybody}
    return Graded(exercises, marks, sorted(changes, key=lambda c: (c.submission, c.exercise)), kept)


def _kept(seed: int | None, file: Path) -> int:
    """The seed, kept in the file: whoever grades again with the same results in mind needs it."""
    if seed is None:
        try:
            return int(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            seed = secrets.randbelow(1 << 32)
    file.write_text(f"{seed}\n", encoding="utf-8")
    return seed


def marks_file(out: Path, submission: str, exercise: str) -> Path:
    """Where the marks of a submission are kept."""
    return out / STUDENTS / submission / f"{exercise}.json"


def _everybody(submissions: Path, out: Path) -> list[Source]:
    if not submissions.is_dir():
        raise ValueError(f"there is no folder {submissions}")
    if submissions.resolve() in (out, *out.parents):
        raise ValueError(f"{out} lies among the submissions: the results need a folder of their own")
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file: the results need a folder")
    return sources(submissions)


def _found(everybody: Sequence[Source]) -> list[str]:
    """The exercises that somebody has handed in."""
    names = [name for name in suite.exercises(suite.COURSE) if any(_has(source, name) for source in everybody)]
    if not names:
        raise ValueError(
            f"no submission has the file of an exercise; there are: {', '.join(suite.exercises(suite.COURSE))}"
        )
    return names


def _has(source: Source, exercise: str) -> bool:
    with contextlib.suppress(Unreadable):
        return bool(take(source, exercise))
    return False


def _one(
    workers: Workers, source: Source, exercise: str, tests: Sequence[suite.Test], out: Path, seed: int
) -> tuple[Marks, Marks | None]:
    """The marks of one submission, and those of an earlier run: the same object if they still hold."""
    file = marks_file(out, source.name, exercise)
    before = Marks.load(file)
    try:
        taken = take(source, exercise)
    except Unreadable as problem:
        marks = Marks(source.name, exercise, f"unreadable: {problem}", seed, none_ran(tests), str(problem))
    else:
        digest = _digest(exercise, taken, seed)
        if before is not None and before.digest == digest:
            return before, before
        pages = file.with_suffix("")
        shutil.rmtree(pages, ignore_errors=True)
        problem, ended, weaknesses = workers.grade(exercise, taken, pages, seed_of(digest), tests)
        kept_as = f"again: {digest}" if problem == DIED else digest  # a mistake of ours is no result of theirs
        marks = Marks(source.name, exercise, kept_as, seed, ended, problem, taken.left, weaknesses)
    marks.save(file)
    return marks, before


def seed_of(digest: str) -> int:
    """The seed of one submission: the same for the same files, tests and seed of the batch."""
    return int(digest[:15], 16)


def _digest(exercise: str, taken: Taken, seed: int) -> str:
    """The same for the same files, seed, tests and grader: then the result is the same, too."""
    digest = hashlib.sha256(f"{exercise} {seed} {taken.digest}".encode())
    for file in [suite.tests_file(suite.COURSE, exercise), *sorted(Path(suite.__file__).parent.rglob("*.py"))]:
        digest.update(file.read_bytes())
    return digest.hexdigest()


# -- the processes -----------------------------------------------------------------------------------------------------


class Stopped(Exception):
    """The batch is being ended."""


class Workers:
    """Worker processes, one for each job at most, each kept from one submission to the next."""

    def __init__(self, jobs: int, time_limit: float) -> None:
        self.time_limit = time_limit
        self._idle: queue.SimpleQueue[Worker | None] = queue.SimpleQueue()
        self._all: set[Worker] = set()
        self._ended = False
        for _ in range(jobs):
            self._idle.put(None)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def grade(
        self, exercise: str, taken: Taken, pages: Path, seed: int, tests: Sequence[suite.Test]
    ) -> tuple[str | None, list[Mark], list[str]]:
        """What kept the tests from coming to their end, or None; a mark for each test; how the sandbox was weak."""
        with tempfile.TemporaryDirectory(prefix="dtcourse-grade-") as made:  # of mode 0700
            folder = Path(made) / "submission"  # messages say "submission/ring.py", each time the same
            folder.mkdir()
            taken.write(folder)
            order = {"exercise": exercise, "folder": str(folder), "pages": str(pages), "seed": seed}
            problem, answers = self._ask(order)
            if problem == DIED:  # once may be an accident of the machine's
                problem, answers = self._ask(order)
        if self._ended:
            raise Stopped  # what the tests had come to is no result
        ended = {answer["ended"]["test"]: answer["ended"] for answer in answers if "ended" in answer}
        weaknesses = next((answer["weaknesses"] for answer in answers if "weaknesses" in answer), [])
        found = [_mark(test, ended.get(test.name)) for test in tests]
        return problem or at_fault(found), found, weaknesses

    def _ask(self, order: dict[str, object]) -> tuple[str | None, list[dict]]:
        worker = self._idle.get() or self._start()
        try:
            problem, answers = worker.ask(order, self.time_limit)
            if problem is not None:
                worker.end()
                self._all.discard(worker)
        finally:
            self._idle.put(worker if worker.alive else None)
        return problem, answers

    def _start(self) -> Worker:
        worker = Worker()
        self._all.add(worker)
        if self._ended:
            worker.end()
        return worker

    def end(self) -> None:
        """End all workers, and with them all that they started."""
        self._ended = True
        for worker in list(self._all):
            worker.end()


DIED = "the grader's own process has died in these tests"


class Worker:
    """One worker process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "dtcourse.grading.batch.worker"], cwd=suite.COURSE,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, order: dict[str, object], time_limit: float) -> tuple[str | None, list[dict]]:
        """What went wrong, or None; and the answers until then."""
        late = threading.Event()
        clock = threading.Timer(time_limit, lambda: (late.set(), self.end()))
        clock.start()
        answers: list[dict] = []
        try:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()
            for answer in self._answers():
                answers.append(answer)
                if answer.get("done"):
                    return None, answers
        except BrokenPipeError:
            pass
        finally:
            clock.cancel()
        return f"the tests were not done after {time_limit:g} s, and were ended" if late.is_set() else DIED, answers

    def _answers(self) -> Iterator[dict]:
        for line in self._process.stdout:
            yield json.loads(line)

    def end(self) -> None:
        """End the process and its group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def at_fault(found: Sequence[Mark]) -> str | None:
    """What a teacher has to know if all tests are done: that one of them is at fault. Why stands in its message."""
    broken = [f"“{one.title}”" for one in found if one.outcome is Outcome.MISSING]
    return f"these tests did not run to their end, and may be wrong: {', '.join(broken)}" if broken else None


def _mark(test: suite.Test, ended: dict | None) -> Mark:
    if ended is None:
        return mark(test, Outcome.MISSING)
    return mark(test, Outcome(ended["outcome"]), ended["message"], ended["share"], ended["page"])
