"""The course as an autograder for Gradescope: a zip of two scripts, and the course without lessons and solutions."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from dtcourse.grading import suite
from dtcourse.grading.batch.release import copy, stub, write

COPIED = ("README.md", "LICENSE", "pyproject.toml", "constraints.txt", "dtcourse", "tests/exercises/conftest.py")

SETUP = """#!/usr/bin/env bash
# Installs the course once, when the autograder's image is built. It needs Python 3.11 or newer: choose a base image
# that has it, such as Ubuntu 24.04. PIP_ARGS can name another package index, for instance that of PyTorch's CPU builds.
set -euo pipefail
apt-get update
apt-get install -y python3 python3-venv
python3 -m venv /autograder/venv
cd /autograder/source/course
/autograder/venv/bin/pip install --constraint constraints.txt ${PIP_ARGS:-} --editable .
"""

RUN = """#!/usr/bin/env bash
# Grades the one submission that is there. If this fails, there are no results, and Gradescope says so. `grade` ends
# with 1 where something has to be looked at, such as a file that is missing: then the results say what.
set -euo pipefail
rm -rf /autograder/handed-in /autograder/graded
mkdir /autograder/handed-in
cp -rP /autograder/submission /autograder/handed-in/submission
/autograder/venv/bin/dtcourse grade /autograder/handed-in --out /autograder/graded EXERCISES || [ $? = 1 ]
cp /autograder/graded/submissions/submission/results.json /autograder/results/results.json
"""


def autograder(exercises: Sequence[str], file: Path) -> None:
    """Write the zip. Raises ValueError if there is no such exercise, or if `file` is no name of a zip."""
    if file.suffix != ".zip":
        raise ValueError(f"{file}: the autograder is a zip, so its name ends in .zip")
    for name in exercises:
        suite.tests_of(suite.COURSE, name)
    with tempfile.TemporaryDirectory(prefix="dtcourse-gradescope-") as made:
        root = Path(made)
        for name in COPIED:
            copy(suite.COURSE / name, root / "course" / name)
        for name in suite.exercises(suite.COURSE):
            given = suite.COURSE / "exercises" / f"{name}.py"
            write(root / "course" / "exercises" / given.name, stub(given.read_text("utf-8")))
            copy(suite.tests_file(suite.COURSE, name), root / "course" / suite.TESTS / f"test_{name}.py")
        write(root / "setup.sh", SETUP)
        write(root / "run_autograder", RUN.replace("EXERCISES", " ".join(f"--exercise {name}" for name in exercises)))
        for name in ("setup.sh", "run_autograder"):
            (root / name).chmod(0o755)
        shutil.make_archive(str(file.with_suffix("")), "zip", root)
