"""The student edition: stubs, no solutions, no hidden tests, nothing that speaks of what is not there."""

import ast
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from dtcourse.grading import suite
from dtcourse.grading.batch.gradescope import autograder
from dtcourse.grading.batch.release import for_students, release, stub, visible, write_stubs

ROOT = Path(__file__).parents[3]
SOLUTION = '''"""An exercise."""

# BEGIN SOLUTION
import secret
# END SOLUTION

def one(x):
    """What it has to do."""
    y = 2 * x
    # BEGIN SOLUTION
    return y + secret.one
    # END SOLUTION


def two(x):
    # BEGIN SOLUTION
    return 2
    # END SOLUTION
'''
TESTS = '''import pytest

def test_seen(submission):
    """seen"""


@pytest.mark.hidden
@pytest.mark.points(2)
def test_surprise(submission):
    """a surprise"""
    assert submission.run("one", 7)


# the end
@pytest.mark.points(2)
def test_also_seen(submission): ...
'''


def test_stub():
    made = stub(SOLUTION)
    assert "secret" not in made and "SOLUTION" not in made
    assert made.endswith('def two(x):\n    raise NotImplementedError("not written yet: two")\n')
    assert '    y = 2 * x\n    raise NotImplementedError("not written yet: one")\n' in made


def test_stubs_of_new_exercises_too(tmp_path):
    (tmp_path / "solutions").mkdir()
    (tmp_path / "solutions" / "new.py").write_text(SOLUTION)
    write_stubs(tmp_path, tmp_path)
    assert (tmp_path / "exercises" / "new.py").read_text() == stub(SOLUTION)


def test_visible():
    made = visible(TESTS)
    names = [node.name for node in ast.parse(made).body if isinstance(node, ast.FunctionDef)]
    assert names == ["test_seen", "test_also_seen"]
    assert "surprise" not in made and "# the end" in made
    assert visible(made) == made


def test_for_students():
    text = "a\n# BEGIN TEACHER\nb\n# END TEACHER\nc\nd <!-- teacher -->\ne\n"
    assert for_students(text) == "a\nc\ne\n"


@pytest.fixture(scope="module")
def edition(tmp_path_factory):
    folder = tmp_path_factory.mktemp("release") / "edition"
    release(folder)
    return folder


def test_edition_has_what_a_student_needs(edition):
    for name in (
        "README.md",
        "Makefile",
        "pyproject.toml",
        "LICENSE",
        "lessons/00_start_here.ipynb",
        "docs/player.png",
    ):
        assert (edition / name).is_file()
    names = suite.exercises(ROOT)
    assert suite.exercises(edition) == names
    for name in names:
        assert "not written yet" in (edition / "exercises" / f"{name}.py").read_text()
        shown = [test for test in suite.tests_of(ROOT, name) if not test.hidden]
        assert suite.tests_of(edition, name) == shown


def test_edition_has_nothing_more(edition):
    assert not (edition / "solutions").exists() and not (edition / "benchmarks").exists()
    assert {file.name for file in (edition / "tests").rglob("*") if file.is_file()} == {
        "conftest.py", *(f"test_{name}.py" for name in suite.exercises(ROOT)),
    }  # fmt: skip
    for file in edition.rglob("*"):
        if file.is_file() and file.suffix in {".py", ".md", ".ipynb"} and "grading" not in file.parts:
            text = file.read_text("utf-8")
            assert "BEGIN SOLUTION" not in text and "pytest.mark.hidden" not in text
            assert file.suffix != ".ipynb" or "solutions" not in text  # a lesson would stop there
    makefile = (edition / "Makefile").read_text()
    assert "TEACHER" not in makefile and "\ntest:" not in makefile and "\nlab:" in makefile
    readme = (edition / "README.md").read_text()
    assert (
        "make test" not in readme and "solutions" not in readme and "teach" not in readme.lower().replace("teaches", "")
    )


def test_edition_checks_itself(edition):
    command = [sys.executable, "-m", "dtcourse.cli", "check", "ring"]
    checked = subprocess.run(command, cwd=edition, capture_output=True, text=True, env={"PYTHONPATH": str(edition)})
    assert checked.returncode == 1 and "ring: not written yet" in checked.stdout, checked.stderr


def test_edition_is_made_once(edition):
    with pytest.raises(ValueError, match="is there already"):
        release(edition)
    with pytest.raises(ValueError, match="is there already"):
        release(edition / "README.md")


def test_edition_makes_no_edition(edition, tmp_path):
    command = [sys.executable, "-m", "dtcourse.cli", "release", str(tmp_path / "again")]
    made = subprocess.run(command, cwd=edition, capture_output=True, text=True, env={"PYTHONPATH": str(edition)})
    assert made.returncode == 2 and "is it a student edition itself?" in made.stderr
    assert not (tmp_path / "again").exists()


def test_gradescope_zip(tmp_path):
    autograder(["ring"], tmp_path / "ring.zip")
    with zipfile.ZipFile(tmp_path / "ring.zip") as made:
        names = set(made.namelist())
        assert made.getinfo("run_autograder").external_attr >> 16 & 0o111
        assert re.search(
            r"dtcourse grade .* --exercise ring \|\| \[ \$\? = 1 \]\n", made.read("run_autograder").decode()
        )
    assert {"setup.sh", "course/pyproject.toml", "course/tests/exercises/test_ring.py"} <= names
    assert not any("solutions" in name or "__pycache__" in name for name in names)
    with pytest.raises(ValueError, match="there is no exercise"):
        autograder(["rings"], tmp_path / "rings.zip")
    with pytest.raises(ValueError, match=r"ends in \.zip"):
        autograder(["ring"], tmp_path / "ring.tar")
