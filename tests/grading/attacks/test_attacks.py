"""Submissions that attack: none gets a point that it has not earned, and grader and next submission are as before.

Each file says in its first lines what it tries, which tests it may pass, for what is true of it, and what the grader
says of it. Each is graded as a submission is: all tests of its exercise, in the sandbox.
"""

import importlib
import os
import re
import sys
from pathlib import Path

import pytest
import torch

from dtcourse import per_rank, provenance
from dtcourse.grading import suite
from dtcourse.grading.findings import CheckFailed
from dtcourse.grading.sandbox.clusters import SandboxedClusters
from dtcourse.grading.sandbox.keeper import Keeper
from dtcourse.grading.submission import Submission

HERE = Path(__file__).parent
ROOT = suite.course_folder(HERE)


@pytest.fixture(scope="module")
def clusters():
    sys.path.insert(0, str(ROOT / suite.TESTS))
    with SandboxedClusters(timeout=2.0) as clusters:
        yield clusters


def attacks():
    files = sorted(file for folder in HERE.iterdir() if folder.is_dir() for file in folder.glob("*.py"))
    return [pytest.param(file, id=f"{file.parent.name}-{file.stem}") for file in files]


def graded(exercise, file, clusters):
    """test -> how it failed, or None if it was passed."""
    module, submission = importlib.import_module(f"test_{exercise}"), Submission(file, clusters)
    outcomes = {}
    for test in suite.tests_of(ROOT, exercise):
        try:
            getattr(module, test.name)(submission)
            outcomes[test.name] = None
        except CheckFailed as failure:
            outcomes[test.name] = str(failure)
        except Exception as problem:  # as pytest tells it: no point either
            outcomes[test.name] = f"the test itself did not run to its end: {problem!r}"
    return outcomes


def left_in_jails():
    """The processes of users that only jails of this process have, if the tests run as root."""
    found = []
    for number in filter(str.isdigit, os.listdir("/proc") if os.path.isdir("/proc") else []):
        try:
            state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
            if os.stat(f"/proc/{number}").st_uid in Keeper.shared().users and state != "Z":
                found.append(int(number))
        except OSError:
            continue  # it has ended
    return found


@pytest.mark.parametrize("file", attacks())
def test_an_attack_gets_no_point_that_it_has_not_earned(file, clusters, tmp_path):
    exercise, (says,) = file.parent.name, re.findall(r"^# says: (.+)$", file.read_text(), re.M)
    may_pass = set(re.findall(r"^# passes: (.+)$", file.read_text(), re.M)[0].split())
    alone = tmp_path / f"{exercise}.py"  # its folder is all that a submission sees
    alone.write_text(file.read_text())
    outcomes = graded(exercise, alone, clusters)
    assert {test for test, failure in outcomes.items() if failure is None} <= may_pass
    assert any(failure and re.search(says, failure) for failure in outcomes.values()), outcomes
    clusters.close()
    assert left_in_jails() == []
    assert sorted(os.listdir(tmp_path)) == [alone.name]


def test_the_next_submission_is_graded_as_ever(clusters):
    """After all of them, in the same process and with the same keeper."""
    submission = Submission(ROOT / "solutions" / "ring.py", clusters)
    run = submission.run("ring_all_reduce", per_rank([provenance(3, rank, 7) for rank in range(3)]), world=3)
    total = sum(provenance(3, rank, 7) for rank in range(3))
    assert all(torch.equal(e.arguments[0], total) for e in run.events if e.kind == "return")
    assert set(graded("ring", ROOT / "solutions" / "ring.py", clusters).values()) == {None}
