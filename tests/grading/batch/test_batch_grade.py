"""A class, graded end to end: marks, what is kept, what a regrade changes, a batch that is killed, one that is late."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from dtcourse.grading import suite
from dtcourse.grading.batch.command import grade_in_terminal
from dtcourse.grading.batch.grade import grade, marks_file
from dtcourse.grading.batch.marks import Marks
from dtcourse.grading.outcome import Outcome

ROOT = Path(__file__).parents[3]
VERSIONS = ROOT / "tests" / "exercises"
POSSIBLE = sum(test.points for test in suite.tests_of(ROOT, "ring"))


def hand_in(folder, **files):
    """A submission for each name: of the file at this path, of a text, or empty."""
    for name, file in files.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        if isinstance(file, Path):
            shutil.copy(file, folder / name / "ring.py")
        elif file:
            (folder / name / "ring.py").write_text(file)
    return folder


def earned(graded):
    return {name: found[0].earned for name, found in graded.marks.items()}


def test_a_class(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    stub = ROOT / "exercises" / "ring.py"
    averages = VERSIONS / "wrong" / "ring" / "averages.py"
    solution = ROOT / "solutions" / "ring.py"
    folder = hand_in(Path("in"), anna=solution, bert=averages, carl=stub, dora=None)
    out = Path("out")  # as a teacher types it: the workers have another working folder
    assert grade_in_terminal(folder, out, [], jobs=2, seed=0) == 1  # dora has to be looked at
    said = capsys.readouterr().out
    assert "4 submissions, ring" in said and "look at: dora, ring: there is no file ring.py" in said
    assert out.stat().st_mode & 0o777 == 0o700

    first = grade(folder, out)
    assert first.kept == 3 and first.changes == []
    points = earned(first)
    assert points["anna"] == POSSIBLE and 0 < points["bert"] < POSSIBLE and points["carl"] == points["dora"] == 0
    assert all(found[0].possible == POSSIBLE for found in first.marks.values())
    assert {mark.outcome for mark in first.marks["carl"][0].tests} == {Outcome.NOT_WRITTEN}
    failed = first.marks["bert"][0].first_failure
    assert "ends with the average in chunk 0" in failed.message
    page = (out / "submissions" / "bert" / "index.html").read_text()
    assert "ends with the average in chunk 0" in page and "srcdoc=" in page
    assert (out / "grades.csv").read_text().splitlines()[1] == f"anna,{POSSIBLE:g},{POSSIBLE:g},{POSSIBLE:g},"

    hand_in(folder, bert=solution)  # a late change
    assert grade_in_terminal(folder, out, [], jobs=1, seed=0) == 1
    assert f"changed: bert, ring: {points['bert']:g}, now {POSSIBLE:g} points" in capsys.readouterr().out
    again = grade(folder, tmp_path / "elsewhere", jobs=2)
    assert again.kept == 0 and earned(again) == earned(grade(folder, out))


SOLUTION = (ROOT / "solutions" / "ring.py").read_text()


def test_a_batch_that_is_killed_goes_on_where_it_was(tmp_path):
    folder = hand_in(tmp_path / "in", **{f"s{i}": f"{SOLUTION}# {i}\n" for i in range(4)})
    command = [sys.executable, "-m", "dtcourse.cli", "grade", str(folder), "--jobs", "2", "--out"]
    out = tmp_path / "out"
    batch = subprocess.Popen([*command, str(out)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while not any((out / "submissions").glob("*/ring.json")):
        assert batch.poll() is None
        time.sleep(0.05)
    below = psutil.Process(batch.pid).children(recursive=True)
    batch.send_signal(signal.SIGKILL)
    batch.wait()
    done = {file: file.stat().st_mtime_ns for file in (out / "submissions").glob("*/ring.json")}
    assert 0 < len(done) < 4
    _, alive = psutil.wait_procs(below, timeout=20)
    assert alive == []
    assert subprocess.run([*command, str(out)], capture_output=True).returncode == 0
    assert all(file.stat().st_mtime_ns == then for file, then in done.items())
    whole = tmp_path / "whole"
    assert subprocess.run([*command, str(whole)], capture_output=True).returncode == 0
    assert (out / "grades.csv").read_bytes() == (whole / "grades.csv").read_bytes()


def test_the_stop_key_leaves_no_result_that_is_none(tmp_path):
    folder = hand_in(tmp_path / "in", anna=f"{SOLUTION}# 1\n", bert=f"{SOLUTION}# 2\n")
    out = tmp_path / "out"
    command = [sys.executable, "-m", "dtcourse.cli", "grade", str(folder), "--jobs", "2", "--out", str(out)]
    batch = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while len(psutil.Process(batch.pid).children(recursive=True)) < 5:  # two workers, and what they have started
        assert batch.poll() is None
        time.sleep(0.05)
    batch.send_signal(signal.SIGINT)
    batch.communicate()
    assert batch.returncode == 130
    found = [Marks.load(file) for file in (out / "submissions").glob("*/ring.json")]
    assert all(marks.problem is None and marks.earned == POSSIBLE for marks in found)


def test_a_submission_that_takes_too_long_keeps_what_it_has_earned(tmp_path):
    late = SOLUTION.replace(
        "def ring_all_reduce(", "def ring_all_reduce(*_, **__):\n    import time\n    time.sleep(9)\n\n\ndef unused("
    )
    graded = grade(hand_in(tmp_path / "in", late=late), tmp_path / "out", time_limit=30)
    found = graded.marks["late"][0]
    assert found.problem == "the tests were not done after 30 s, and were ended"
    assert found.tests[0].outcome is Outcome.PASSED and found.tests[-1].outcome is Outcome.MISSING
    assert 0 < found.earned < found.possible == POSSIBLE


def test_what_cannot_be_graded_is_said_before_anything_starts(tmp_path, capsys):
    assert grade_in_terminal(tmp_path / "nowhere", tmp_path / "out", [], 1, 0) == 2
    folder = hand_in(tmp_path / "in", anna="")
    assert grade_in_terminal(folder, tmp_path / "out", [], 1, 0) == 2
    assert grade_in_terminal(folder, folder / "out", ["ring"], 1, 0) == 2
    assert grade_in_terminal(folder, tmp_path / "out", ["rings"], 1, 0) == 2
    (tmp_path / "file").touch()
    assert grade_in_terminal(folder, tmp_path / "file", ["ring"], 1, 0) == 2
    said = capsys.readouterr().err
    for text in ("there is no folder", "no submission has the file of", "lies among the submissions", "no exercise"):
        assert text in said
    assert "file is a file" in said
    assert not (tmp_path / "out").exists()


def test_results_that_nobody_can_read_are_made_again(tmp_path):
    folder, out = hand_in(tmp_path / "in", anna=ROOT / "exercises" / "ring.py"), tmp_path / "out"
    grade(folder, out)
    file = marks_file(out, "anna", "ring")
    for rubbish in ("", "{", "[1]"):
        file.write_text(rubbish)
        assert grade(folder, out).kept == 0
    assert Marks.load(file).earned == 0 and os.listdir(file.parent) == ["ring.json"]


def test_a_seed_is_drawn_and_kept(tmp_path):
    folder = hand_in(tmp_path / "in", anna=ROOT / "exercises" / "ring.py")
    outs = [tmp_path / "one", tmp_path / "two"]
    seeds = [grade(folder, out).marks["anna"][0].seed for out in outs]
    assert seeds[0] != seeds[1] and [int((out / "seed.txt").read_text()) for out in outs] == seeds
    assert grade(folder, outs[0]).kept == 1
    assert grade(folder, outs[1], seed=seeds[0]).marks["anna"] == grade(folder, outs[0]).marks["anna"]


@pytest.mark.parametrize("seed", [1, 2])
def test_another_seed_is_another_batch(tmp_path, seed):
    folder, out = hand_in(tmp_path / "in", anna=ROOT / "exercises" / "ring.py"), tmp_path / "out"
    assert grade(folder, out, seed=0).kept == 0
    assert grade(folder, out, seed=seed).kept == 0
    assert grade(folder, out, seed=seed).kept == 1
