"""Seconds to grade a submission, one at a time: our ring on its ranks in sandboxes, against nbgrader and otter.

Their submission is a notebook of five cells, small functions and tests of them, and nothing distributed. They live in
an environment of their own, .venv/peers, made the first time: nbgrader brings an extension of JupyterLab along, and a
reader's JupyterLab shall not have it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.table import Row

ROOT = Path(__file__).parent.parent
PEERS = ROOT / ".venv" / "peers"
WANTED = ["nbgrader==0.9.6", "otter-grader==7.0.0", "ipykernel"]
SUBMISSIONS = 6
FUNCTIONS = ("square", "cube", "double")
BODIES = {"square": "x * x", "cube": "x * x * x", "double": "2 * x"}


def rows() -> Iterator[Row]:
    """Each grades a batch of the same size, as its makers recommend it."""
    bin_folder = peers()
    with tempfile.TemporaryDirectory(prefix="dtcourse-bench-") as made:
        folder = Path(made)
        ours = seconds_of_ours(folder / "ours")
        yield Row("grade a submission, against", "s", ours, 0.5, nbgrader(bin_folder, folder / "nbgrader"), "nbgrader")
        yield Row("grade a submission, against", "s", ours, 0.5, otter(bin_folder, folder / "otter"), "otter")


def seconds_of_ours(folder: Path) -> float:
    """The whole exercise `ring`: 23 points, some 150 runs on 1 to 5 ranks."""
    for number in range(SUBMISSIONS):
        (folder / "in" / f"s{number}").mkdir(parents=True)
        text = (ROOT / "solutions" / "ring.py").read_text()
        (folder / "in" / f"s{number}" / "ring.py").write_text(f"{text}# {number}\n")
    command = [sys.executable, "-m", "dtcourse.cli", "grade", str(folder / "in"), "--out", str(folder / "out")]
    taken = timed([*command, "--jobs", "1"], ROOT)
    marks = [json.loads(file.read_text()) for file in (folder / "out").glob("submissions/*/ring.json")]
    assert len(marks) == SUBMISSIONS and all(t["outcome"] == "passed" for m in marks for t in m["tests"])
    return taken / SUBMISSIONS


def nbgrader(bin_folder: Path, folder: Path) -> float:
    """`nbgrader autograde` on a batch."""
    source = folder / "source" / "ps1"
    source.mkdir(parents=True)
    cells = [code("import math")]
    for name in FUNCTIONS[:2]:
        cells += [code(function(name, marked=True), name, solution=True), code(test(name), f"test_{name}", points=1)]
    write(source / "ps1.ipynb", [cell | {"id": f"c{i}"} for i, cell in enumerate(cells)])
    (folder / "nbgrader_config.py").write_text("c = get_config()\nc.CourseDirectory.course_id = 'bench'\n")
    run([str(bin_folder / "nbgrader"), "generate_assignment", "ps1"], folder)
    for number in range(SUBMISSIONS):
        target = folder / "submitted" / f"s{number}" / "ps1"
        shutil.copytree(folder / "release" / "ps1", target)
        text = (target / "ps1.ipynb").read_text()
        for name in FUNCTIONS:
            text = text.replace(f"def {name}(x):\\n", f"def {name}(x):\\n    return {BODIES[name]}\\n")
        (target / "ps1.ipynb").write_text(text)
    taken = timed([str(bin_folder / "nbgrader"), "autograde", "ps1"], folder)
    assert len(list((folder / "autograded").glob("*/ps1/ps1.ipynb"))) == SUBMISSIONS
    return taken / SUBMISSIONS


def otter(bin_folder: Path, folder: Path) -> float:
    """`otter run` on one after the other; it knows no batch without Docker."""
    folder.mkdir()
    cells: list[dict] = [raw("# ASSIGNMENT CONFIG\ngenerate: true\nsolutions_pdf: false\nrun_tests: false\n")]
    for name in FUNCTIONS:
        cells += [raw(f"# BEGIN QUESTION\nname: {name}\npoints: 1"), raw("# BEGIN SOLUTION")]
        cells += [code(function(name)), raw("# END SOLUTION"), raw("# BEGIN TESTS"), code(test(name))]
        cells += [raw("# END TESTS"), raw("# END QUESTION")]
    write(folder / "ps1.ipynb", [cell | {"id": f"c{i}"} for i, cell in enumerate(cells)])
    run([str(bin_folder / "otter"), "assign", "ps1.ipynb", "dist"], folder)
    archive = next((folder / "dist" / "autograder").glob("*.zip"))
    submission = folder / "submission.ipynb"
    write(submission, [code(function(name)) | {"id": f"c{i}"} for i, name in enumerate(FUNCTIONS)])
    command = [str(bin_folder / "otter"), "run", "-a", str(archive), "-o", str(folder), str(submission)]
    taken = sum(timed(command, folder) for _ in range(SUBMISSIONS))
    results = json.loads((folder / "results.json").read_text())
    assert sum(test.get("score", 0) for test in results["tests"]) == len(FUNCTIONS)
    return taken / SUBMISSIONS


# -- notebooks and processes -------------------------------------------------------------------------------------------


def function(name: str, marked: bool = False) -> str:
    body = f"    return {BODIES[name]}"
    return f"def {name}(x):\n" + (f"    ### BEGIN SOLUTION\n{body}\n    ### END SOLUTION" if marked else body)


def test(name: str) -> str:
    return f"assert {name}(3) == {eval(BODIES[name], {'x': 3})}"


def code(source: str, grade_id: str = "", solution: bool = False, points: int = 0) -> dict:
    """A code cell, with nbgrader's metadata if it has an id there."""
    about = {"grade": points > 0, "solution": solution, "locked": points > 0, "task": False, "schema_version": 3}
    metadata = {"nbgrader": about | {"grade_id": grade_id} | ({"points": points} if points else {})} if grade_id else {}
    return {"cell_type": "code", "metadata": metadata, "source": source, "outputs": [], "execution_count": None}


def raw(source: str) -> dict:
    return {"cell_type": "raw", "metadata": {}, "source": source}


def write(file: Path, cells: list[dict]) -> None:
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    language = {"name": "python", "file_extension": ".py"}
    metadata = {"kernelspec": kernel, "language_info": language}
    file.write_text(json.dumps({"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}))


def peers() -> Path:
    """The folder with the commands of both."""
    if not (PEERS / "bin" / "otter").exists():
        run([sys.executable, "-m", "venv", "--clear", str(PEERS)], ROOT)
        run([str(PEERS / "bin" / "pip"), "install", "-q", "--constraint", "constraints.txt", *WANTED], ROOT)
    return PEERS / "bin"


def timed(command: list[str], folder: Path) -> float:
    start = time.perf_counter()
    run(command, folder)
    return time.perf_counter() - start


def run(command: list[str], folder: Path) -> None:
    # nbgrader calls other commands of its environment by their names alone
    environment = os.environ | {"PATH": f"{PEERS / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise RuntimeError(
            f"{' '.join(command[:3])} ended with {done.returncode}: {(done.stderr or done.stdout)[-800:]}"
        )
