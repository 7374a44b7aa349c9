"""`dtcourse grade`: grades a folder of submissions, shows how far it is, and writes tables and pages."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from dtcourse.grading.batch.grade import STUDENTS, Graded, grade
from dtcourse.grading.batch.pages import weaknesses, write_class, write_student
from dtcourse.grading.batch.tables import write_csv, write_gradescope, write_junit
from dtcourse.grading.findings import number_of


def grade_in_terminal(submissions: Path, out: Path, exercises: Sequence[str], jobs: int, seed: int | None) -> int:
    """Grade, write and say where; 0 if all was graded, 1 if some tests did not come to their end, 2 if none began."""
    try:
        with tqdm(total=0, unit=" exercises", file=sys.stderr, leave=False) as bar:

            def told(done: int, of: int) -> None:
                bar.total = of
                bar.update(done - bar.n)

            graded = grade(submissions, out, exercises, jobs, seed, told=told)
    except ValueError as problem:
        print(problem, file=sys.stderr)
        return 2
    write(graded, out)
    print(summary(graded, out))
    return 1 if any(marks.problem for found in graded.marks.values() for marks in found) else 0


def write(graded: Graded, out: Path) -> None:
    """All tables and pages, from the marks alone."""
    for name, found in graded.marks.items():
        folder = out / STUDENTS / name
        write_student(name, found, folder)
        write_gradescope(found, folder / "results.json")
        write_junit(found, folder / "junit.xml")
    write_csv(graded.marks, graded.exercises, out / "grades.csv")
    write_class(graded.marks, graded.exercises, out, STUDENTS)


def summary(graded: Graded, out: Path) -> str:
    """What was done, what a regrade has changed, and what a teacher has to look at."""
    graded_what = f"{number_of(len(graded.marks), 'submission')}, {', '.join(graded.exercises)}"
    lines = [f"{graded_what}: {out / 'grades.csv'}, {out / 'summary.html'}"]
    if graded.kept:
        lines.append(f"{graded.kept} results of an earlier run still hold and were kept.")
    for change in graded.changes:
        lines.append(f"changed: {change.submission}, {change.exercise}: {change.before:g}, now {change.after:g} points")
    for name, found in sorted(graded.marks.items()):
        lines += [f"look at: {name}, {marks.exercise}: {marks.problem}" for marks in found if marks.problem]
    return "\n".join([*(f"WARNING: {weakness}" for weakness in weaknesses(graded.marks)), *lines])
