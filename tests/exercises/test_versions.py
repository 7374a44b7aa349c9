"""The tests of the exercises, tested: solutions and right versions pass, each wrong version fails with its own message.

All run in this process, on ranks that are kept from one version to the next; only the versions' own code never does.
"""

import importlib
import re
from pathlib import Path

import pytest

from dtcourse.grading import suite
from dtcourse.grading.batch.release import stub
from dtcourse.grading.findings import CheckFailed, NotWritten
from dtcourse.grading.submission import Submission

HERE = Path(__file__).parent
ROOT = suite.course_folder(HERE)
NAMES = suite.exercises(ROOT)


def versions(kind):
    """(exercise, file) of each version; one with helpers is a folder."""
    files = [(name, HERE / kind / name, file) for name in NAMES for file in _files(HERE / kind / name, name)]
    return [pytest.param(name, file, id=f"{name}-{_label(folder, file)}") for name, folder, file in files]


def _files(folder, name):
    return sorted([*folder.glob("*.py"), *folder.glob(f"*/{name}.py")])


def _label(folder, file):
    return file.relative_to(folder).parts[0].removesuffix(".py")


def failures(name, file, clusters):
    """(test, how it failed) for each test of the exercise that this file fails, one after the other."""
    module, submission = importlib.import_module(f"test_{name}"), Submission(file, clusters)
    for test in suite.tests_of(ROOT, name):
        try:
            getattr(module, test.name)(submission)
        except CheckFailed as failure:
            yield test.name, failure


@pytest.mark.parametrize("name", NAMES)
def test_solution_passes(name, clusters):
    assert dict(failures(name, ROOT / "solutions" / f"{name}.py", clusters)) == {}


@pytest.mark.parametrize(("name", "file"), versions("right"))
def test_right_version_passes(name, file, clusters):
    assert dict(failures(name, file, clusters)) == {}


@pytest.mark.parametrize("name", NAMES)
def test_stub_is_not_written_yet(name, clusters, tmp_path):
    file = tmp_path / f"{name}.py"
    file.write_text(stub((ROOT / "solutions" / file.name).read_text()))
    found = dict(failures(name, file, clusters))
    assert set(found) == {test.name for test in suite.tests_of(ROOT, name)}
    assert all(isinstance(failure, NotWritten) for failure in found.values())
    assert all(re.fullmatch(r"not written yet: \w+", str(failure)) for failure in found.values())


@pytest.mark.parametrize(("name", "file"), versions("wrong"))
def test_wrong_version_says_what_is_wrong(name, file, clusters):
    expected = re.match(r'""".*"""\n# message: (.*)\n', file.read_text())[1]
    _, first = next(failures(name, file, clusters), (None, "no test has noticed"))
    assert re.search(expected, str(first)), first


def test_every_wrong_version_has_a_message_of_its_own():
    for name in NAMES:
        messages = [file.read_text().splitlines()[1] for file in (HERE / "wrong" / name).glob("*.py")]
        assert len(set(messages)) == len(messages) >= 12


@pytest.mark.parametrize("name", NAMES)
def test_exercise_is_the_stub_of_its_solution(name):
    given = (ROOT / "exercises" / f"{name}.py").read_text()
    made = stub((ROOT / "solutions" / f"{name}.py").read_text())
    if given.count("NotImplementedError") < made.count("NotImplementedError"):
        pytest.skip("somebody has begun to write it")
    assert given == made
