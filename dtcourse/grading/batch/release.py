"""The student edition: the course without solutions, hidden tests, and what only its makers need.

Stubs are made from the solutions: what stands between `# BEGIN SOLUTION` and `# END SOLUTION` is "not written yet".
The course's own exercises/ are made in this way: `python -m dtcourse.grading.batch.release` writes them anew.
"""

from __future__ import annotations

import ast
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from dtcourse.grading import suite

COPIED = (
    "README.md", "LICENSE", "Makefile", "pyproject.toml", "constraints.txt", ".gitignore",
    "dtcourse", "docs/player.png", "lessons", "exercises/README.md", "tests/exercises/conftest.py",
)  # fmt: skip
LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyc", ".*_c*")  # .ruff_cache, .ipynb_checkpoints
OUR_LINE, OURS_FROM, OURS_TO = "<!-- teacher -->", "BEGIN TEACHER", "END TEACHER"  # what is not for students


def release(folder: Path) -> None:
    """Write the student edition into `folder`, which is made. Raises ValueError if something is there already."""
    course = suite.COURSE
    if not (course / "solutions").is_dir():
        raise ValueError(f"{course} has no solutions/ to make the exercises from: is it a student edition itself?")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} is there already: name a folder that is still to be made")
    for name in COPIED:
        copy(course / name, folder / name)
    write_stubs(course, folder)
    for name in suite.exercises(course):
        write(folder / suite.TESTS / f"test_{name}.py", visible(suite.tests_file(course, name).read_text("utf-8")))
    for file in (folder / "README.md", folder / "Makefile", folder / "exercises" / "README.md"):
        write(file, for_students(file.read_text("utf-8")))


def copy(source: Path, target: Path) -> None:
    """Copy a file or a folder, and make the folders above it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, ignore=LEFT_OUT)
    else:
        shutil.copy(source, target)


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def stub(solution: str) -> str:
    """A solution as the reader gets it. A marked part inside a function becomes "not written yet", others go."""
    lines, name, marked = [], "", False
    for line in solution.splitlines():
        if not marked and (match := re.match(r"(?:def|class) (\w+)", line)):
            name = match[1]
        if line.strip() == "# BEGIN SOLUTION":
            marked = True
            if indent := line[: line.index("#")]:
                lines.append(f'{indent}raise NotImplementedError("not written yet: {name}")')
        elif line.strip() == "# END SOLUTION":
            marked = False
        elif not marked:
            lines.append(line)
    return "\n".join(lines).rstrip() + "\n"


def visible(tests: str) -> str:
    """The tests of an exercise without the hidden ones."""
    lines = tests.splitlines(keepends=True)
    for first, last in reversed(list(_hidden(tests))):
        del lines[first - 1 : last]
        while first <= len(lines) and not lines[first - 1].strip() and (first < 2 or not lines[first - 2].strip()):
            del lines[first - 1]  # the empty lines that stood around it
    return "".join(lines).rstrip() + "\n"


def _hidden(tests: str) -> Iterator[tuple[int, int]]:
    """First and last line of each hidden test."""
    for node in ast.parse(tests).body:
        if isinstance(node, ast.FunctionDef) and suite.hidden(node):
            yield min(decorator.lineno for decorator in node.decorator_list), node.end_lineno


def for_students(text: str) -> str:
    """The text without what is marked as the teacher's."""
    kept, ours = [], False
    for line in text.splitlines(keepends=True):
        ours = ours or OURS_FROM in line
        if not ours and OUR_LINE not in line:
            kept.append(line)
        ours = ours and OURS_TO not in line
    return "".join(kept)


def write_stubs(course: Path, folder: Path) -> None:
    """Write `folder`/exercises from the course's solutions, those of new exercises as well."""
    for solution in sorted((course / "solutions").glob("*.py")):
        write(folder / "exercises" / solution.name, stub(solution.read_text("utf-8")))


if __name__ == "__main__":
    write_stubs(suite.COURSE, suite.COURSE)
