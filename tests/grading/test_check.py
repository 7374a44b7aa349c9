"""`check` from end to end, on a small course of its own: what counts as passed, what is shown; nothing stays."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import psutil
import pytest
from nbclient import NotebookClient

from dtcourse.grading import check, check_in_terminal, suite
from dtcourse.grading.outcome import Outcome

ROOT = Path(__file__).parent.parent.parent

TESTS = '''
import os, time
import pytest
from dtcourse import per_rank, provenance
from dtcourse.grading.findings import Finding, fail_on

@pytest.mark.points(2)
def test_swap(submission):
    """two ranks swap"""
    run = submission.run("swap", per_rank([provenance(2, r, 4) for r in (0, 1)]), world=2)
    fail_on(run, [Finding("rank 0 holds its own numbers", 1, 0)] if run.results[0] == "wrong" else [])

def test_more(submission):
    extra = os.environ.get("EXTRA", "")
    if extra == "skip":
        pytest.skip("no reason")
    if extra == "exit":
        os._exit(0)
    if extra == "hang":
        time.sleep(1000)
    if extra == "bug":
        raise KeyError("bug")
'''
RIGHT = """
import torch, torch.distributed as dist

def swap(tensor):
    other, received = 1 - dist.get_rank(), torch.empty_like(tensor)
    for work in (dist.isend(tensor, other), dist.irecv(received, other)):
        work.wait()
    tensor.copy_(received)
"""
WRONG = RIGHT + "    print('I am', dist.get_rank())\n    return 'wrong'\n"
STUB = "def swap(tensor):\n    raise NotImplementedError('not written yet: swap')\n"


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A course with one exercise, the working folder two levels below it."""
    (tmp_path / "exercises").mkdir()
    (tmp_path / "tests" / "exercises").mkdir(parents=True)
    (tmp_path / "lessons" / "pictures").mkdir(parents=True)
    shutil.copy(ROOT / "tests" / "exercises" / "conftest.py", tmp_path / "tests" / "exercises")
    (tmp_path / "tests" / "exercises" / "test_swap.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "exercises" / "swap.py").write_text(RIGHT)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path / "lessons" / "pictures")
    return tmp_path


def outcomes(report):
    return [result.outcome for result in report.results]


def shown_by(report, monkeypatch):
    """The kinds of things that a notebook is given to show."""
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda what, **options: shown.append(type(what).__name__))
    report._ipython_display_()
    return shown


def test_right(course, capsys):
    assert check_in_terminal("swap") == 0
    assert capsys.readouterr().out.startswith("swap: all 2 tests passed. Well done.\n  passed  two ranks swap\n")


def test_wrong_shows_the_message_the_prints_and_the_player(course, monkeypatch):
    (course / "exercises" / "swap.py").write_text(WRONG)
    report = check("swap")
    assert (report.passed, report.points) == (False, 1)
    text = repr(report)
    assert "1 of 2 tests passed, 1 of 3 points" in text
    assert "swap on 2 ranks, 4 elements each: rank 0 holds its own numbers." in text
    assert "[rank 1] I am 1" in text
    assert "rank 0 holds its own numbers" in report._repr_html_() and "<script" not in report._repr_html_()
    assert report.picture.step == 1
    assert shown_by(report, monkeypatch) == ["dict", "Player"]
    assert "swap" not in sys.modules


WITHOUT_TENSORS = """
from dtcourse.grading.findings import Finding, fail_on

def test_meet(submission):
    run = submission.run("meet", world=2, given="nothing")
    fail_on(run, [Finding("they have met", drawing=%r)], "nothing")
"""
MEET = "import torch, torch.distributed as dist\n\ndef meet():\n    dist.all_reduce(torch.ones(1))\n"


@pytest.mark.parametrize(("drawing", "shown"), [("", ["dict", "Timeline"]), ("  0 x 1", ["dict"])])
def test_what_has_no_chunks_is_shown_as_a_timeline_or_drawn(course, monkeypatch, drawing, shown):
    (course / "exercises" / "meet.py").write_text(MEET)
    (course / "tests" / "exercises" / "test_meet.py").write_text(WITHOUT_TENSORS % drawing)
    report = check("meet")
    assert "meet on 2 ranks, nothing: they have met." in repr(report) and drawing in repr(report)
    assert shown_by(report, monkeypatch) == shown


def test_stub_in_another_folder(course, tmp_path, capsys):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "swap.py").write_text(STUB)
    report = check("swap", folder=tmp_path / "mine")
    assert outcomes(report) == [Outcome.NOT_WRITTEN, Outcome.PASSED]
    assert repr(report).endswith("\nnot written yet: swap")
    assert not report.passed and report.picture is None


def test_progress_is_shown_and_leaves_nothing(course, capsys, monkeypatch):
    (course / "exercises" / "swap.py").write_text(WRONG)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    assert check_in_terminal("swap") == 1
    first, *lines = capsys.readouterr().err.split("\r\x1b[K")[1:]
    assert first == "swap: the ranks are starting ..."
    assert any(line.startswith("swap: 2 of 2 tests have run, 1 did not pass ... swap on 2 ranks") for line in lines)
    assert lines[-1] == ""


def test_in_a_notebook_the_report_is_all_that_stays(course):
    (course / "exercises" / "swap.py").write_text(WRONG)
    notebook = nbformat.v4.new_notebook()
    source = "from dtcourse import check\nreport = check('swap')\nreport"
    notebook.cells = [nbformat.v4.new_code_cell(code) for code in (source, "report")]
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(course)}}).execute()
    for cell in notebook.cells:
        report, player = (output["data"]["text/plain"] for output in cell.outputs)
        assert report.startswith("swap: 1 of 2 tests passed") and player.startswith("Chunk player")


ONE_TEST = TESTS.split("def test_more")[0]


@pytest.mark.parametrize(
    ("source", "outcome", "said"),
    [
        (STUB, Outcome.NOT_WRITTEN, "not written yet: swap"),
        ("def swap(tensor):\n    return (\n", Outcome.FAILED, "swap.py cannot be imported: line 2 is not Python"),
        ("import nowhere\n" + RIGHT, Outcome.FAILED, "line 1 (import nowhere) raised ModuleNotFoundError"),
        (RIGHT.replace("swap", "swop"), Outcome.FAILED, "swap.py has no function swap"),
    ],
)
def test_what_can_be_seen_is_said_without_a_run(course, monkeypatch, source, outcome, said):
    (course / "tests" / "exercises" / "test_swap.py").write_text(ONE_TEST)
    (course / "exercises" / "swap.py").write_text(source)
    monkeypatch.setattr(subprocess, "Popen", None)  # nothing can be started
    report = check("swap")
    assert outcomes(report) == [outcome] and said in repr(report)


def test_each_test_is_judged_on_its_own_and_may_give_a_part_of_its_points(course):
    again = ONE_TEST[ONE_TEST.index("@pytest") :]
    partly = again.replace("test_swap", "test_part").replace("    fail_on", "    submission.earn(0.25)\n    fail_on")
    passes = again.replace("test_swap", "test_runs").replace('== "wrong"', '== "other"')
    (course / "tests" / "exercises" / "test_swap.py").write_text(ONE_TEST + partly + passes)
    (course / "exercises" / "swap.py").write_text(WRONG)
    report = check("swap")
    assert outcomes(report) == [Outcome.FAILED, Outcome.FAILED, Outcome.PASSED]
    assert [result.points for result in report.results] == [0, 0.5, 2]
    assert report.points == 2.5 and report.results[1].run.function == "swap"


@pytest.mark.parametrize("points", ["-1", "float('nan')", "1e999", "'2'", "", "n"])
def test_points_are_numbers_from_0_on(course, points):
    (course / "tests" / "exercises" / "test_swap.py").write_text(TESTS.replace("points(2)", f"points({points})"))
    with pytest.raises(ValueError, match=r"test_swap: points\(.*: what a test is worth is a number, 0 or more"):
        check("swap")


def test_a_test_may_be_worth_nothing(course):
    (course / "tests" / "exercises" / "test_swap.py").write_text(TESTS.replace("points(2)", "points(0)"))
    report = check("swap")
    assert report.passed and report.points == 1


@pytest.mark.parametrize(("folder", "said"), [("none", "there is no folder"), ("lessons", "there is no file swap.py")])
def test_a_missing_file_is_all_that_is_said(course, capsys, folder, said):
    assert check_in_terminal("swap", course / folder) == 2
    written = capsys.readouterr()
    assert said in written.err and written.out == "" and len(written.err.splitlines()) == 1


def test_unknown_exercise(course, capsys):
    assert check_in_terminal("swop") == 2
    assert capsys.readouterr().err == "there is no exercise 'swop'; there are: swap\n"
    with pytest.raises(ValueError, match="there are: swap"):
        check("swop")


@pytest.mark.parametrize(
    ("extra", "outcome", "said"),
    [
        ("skip", Outcome.FAILED, "the test itself did not run to its end"),
        ("bug", Outcome.FAILED, "the test itself did not run to its end: KeyError: 'bug'"),
        ("exit", Outcome.MISSING, "Some tests did not run"),
    ],
)
def test_only_what_ran_and_passed_counts(course, monkeypatch, extra, outcome, said):
    monkeypatch.setenv("EXTRA", extra)
    report = check("swap")
    assert outcomes(report) == [Outcome.PASSED, outcome]
    assert not report.passed and said in repr(report)


PARAMETRIZED = """
import os, pytest

@pytest.mark.parametrize("number", range(3))
def test_swap(submission, number):
    if os.environ.get("EXTRA") == f"wrong {number}":
        raise KeyError(number)
    if os.environ.get("EXTRA") == f"exit {number}":
        os._exit(0)
"""


@pytest.mark.parametrize(
    ("extra", "outcome"),
    [
        ("", Outcome.PASSED),
        ("wrong 0", Outcome.FAILED),
        ("wrong 2", Outcome.FAILED),
        ("exit 0", Outcome.MISSING),
        ("exit 2", Outcome.MISSING),
    ],
)
def test_a_test_with_parameters_passes_if_all_its_cases_pass(course, monkeypatch, extra, outcome):
    (course / "tests" / "exercises" / "test_swap.py").write_text(PARAMETRIZED)
    monkeypatch.setenv("EXTRA", extra)
    assert outcomes(check("swap")) == [outcome]


def test_time_limit(course, monkeypatch):
    monkeypatch.setenv("EXTRA", "hang")
    (course / "exercises" / "swap.py").write_text(WRONG)
    report = check("swap", time_limit=6)
    assert outcomes(report)[1] == Outcome.MISSING and not report.passed
    assert "not done after 6 s" in repr(report)
    assert_nothing_is_left(course)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_nothing_stays_when_the_reader_stops_it(course, monkeypatch, how):
    monkeypatch.setenv("EXTRA", "hang")
    temporary = course / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    kernel = subprocess.Popen(
        [sys.executable, "-c", "from dtcourse.grading import check; check('swap')"], stderr=subprocess.DEVNULL
    )
    wait_for(lambda: any(file.read_text() for file in temporary.glob("dtcourse-check-*/results.jsonl")))
    kernel.send_signal(how)
    kernel.wait()
    assert_nothing_is_left(course)
    if how == signal.SIGINT:
        assert not list(temporary.glob("dtcourse-check-*"))


def test_the_course_is_found_from_anywhere(course, monkeypatch):
    assert suite.course_folder() == course
    monkeypatch.chdir("/")
    assert suite.course_folder() == ROOT


def test_functions_are_read(course):
    source = (
        "def test_swap(submission):\n    submission.run('swap')\n    submission.run(('swap', 'turn'), around=None)\n"
    )
    (course / "tests" / "exercises" / "test_swap.py").write_text(source)
    assert suite.functions_of(course, "swap") == {"test_swap": ["swap", "swap", "turn"]}


def test_functions_are_read_in_helpers_too(course):
    source = """
BOTH = ("swap", "turn")
LIMITS = (1, 2)

def asked(submission, name):
    return submission.run(name)

def swapped(submission):
    return deeper(submission)

def deeper(submission):
    return submission.run(BOTH, LIMITS)

def test_by_a_helper(submission):
    swapped(submission)

def test_handed_on(submission):
    asked(submission, "turn")

def test_of_its_own(submission):
    pass
"""
    (course / "tests" / "exercises" / "test_swap.py").write_text(source)
    read = {"test_by_a_helper": ["swap", "turn"], "test_handed_on": ["turn"], "test_of_its_own": []}
    assert suite.functions_of(course, "swap") == read


def test_points_and_titles_are_read(course):
    assert [(t.name, t.title, t.points) for t in suite.tests_of(course, "swap")] == [
        ("test_swap", "two ranks swap", 2.0),
        ("test_more", "more", 1.0),
    ]


# -- processes ---------------------------------------------------------------------------------------------------------


def wait_for(happened, seconds=60):
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


def assert_nothing_is_left(course):
    """No process works in the folder of this test's course any more."""
    wait_for(lambda: not [p for p in psutil.process_iter() if working_folder(p).startswith(str(course))], seconds=10)


def working_folder(process):
    try:
        return process.cwd() if process.pid != os.getpid() else ""
    except (psutil.Error, OSError):
        return ""
