"""The `dtcourse` command: what it prints, how it ends, and what it says about bad input."""

import os
import subprocess
import sys

import pytest
import torch

from dtcourse import cli, demo
from dtcourse.origins import provenance
from dtcourse.run import Run


def refused(capsys, *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
def test_demo_tells_what_each_rank_did_and_checks_it(ranks, capsys, tmp_path):
    page = tmp_path / "ring.html"
    assert cli.main(["demo", "ring", "--ranks", str(ranks), "--html", str(page)]) == 0
    told = capsys.readouterr().out
    assert told.count("\nstep ") == 2 * (ranks - 1)
    assert "every rank holds what a plain sum gives" in told
    for rank, sent in enumerate(demo.ring_bytes(provenance(ranks, 0, 3 * ranks - 2), ranks)):
        assert f"rank {rank} sent {sent};" in told
    assert ranks > 4 or page.stat().st_size < 100_000


def test_demo_in_the_words_of_the_ring(capsys):
    cli.main(["demo", "ring"])
    told = capsys.readouterr().out
    first, fourth = (
        "sends chunk 0 of rank 0 to rank 1, receives chunk 3",
        "sends chunk 1 of all ranks to rank 1",
    )
    assert f"step 1 of 6\n  rank 0 {first} from rank 3\n" in told
    assert "rank 3 sends chunk 2 of ranks 2, 3 to rank 0" in told
    assert f"step 4 of 6\n  rank 0 {fourth}, receives chunk 0 from rank 3\n" in told
    assert "rank 3 sent 112; 2S - c[0] - c[1] = 112" in told  # 10 elements of 8 bytes in chunks of 3, 3, 2, 2


def test_demo_says_what_is_wrong(capsys, tmp_path):
    run = Run(2, results=[torch.ones(2), torch.zeros(2)])
    assert not demo.compare_sum(run, torch.ones(2))
    assert not demo.compare_bytes(run, [16, 16])
    assert not demo.wrote(run, tmp_path / "none" / "ring.html")
    told = capsys.readouterr().out
    assert "WRONG, not what a plain sum gives" in told
    assert "rank 1 sent 0; 2S - c[0] - c[1] = 16   WRONG" in told
    assert "No page" in told


@pytest.mark.parametrize("ranks", ["0", "9", "-1", "four", ""])
def test_demo_refuses_a_number_of_ranks(ranks, capsys):
    assert "1 to 8 ranks" in refused(capsys, "demo", "ring", f"--ranks={ranks}")


def test_demo_refuses_a_page_that_cannot_be_written(capsys, tmp_path):
    assert "is a folder" in refused(capsys, "demo", "ring", "--html", str(tmp_path))
    assert "cannot be written" in refused(capsys, "demo", "ring", "--html", str(tmp_path / "none" / "ring.html"))


@pytest.mark.parametrize("arguments", [(), ("demo",), ("demo", "tree"), ("doctor", "--more"), ("sing",)])
def test_what_is_not_understood_ends_with_2(arguments, capsys):
    assert "usage: dtcourse" in refused(capsys, *arguments)


def test_lab_opens_the_first_lesson_and_hands_on_the_other_options(monkeypatch, tmp_path):
    (tmp_path / "lessons").mkdir()
    (tmp_path / "lessons" / "00_start.ipynb").touch()
    started = []
    monkeypatch.setattr(cli, "HOME", tmp_path)
    monkeypatch.setattr(os, "execv", lambda _, command: started.extend(command))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    cli.main(["lab", "--no-browser", "--port", "8890"])
    assert started[1:3] == ["-m", "jupyterlab"]
    assert "--allow-root" in started
    assert "--LabApp.default_url=/lab/tree/lessons/00_start.ipynb" in started
    assert started[-3:] == ["--no-browser", "--port", "8890"]


def test_lab_without_a_lesson_says_where_it_looked(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(cli, "HOME", tmp_path)
    assert cli.main(["lab"]) == 1
    assert str(tmp_path / "lessons") in capsys.readouterr().err


def test_doctor_ends_well_where_the_course_runs(capsys):
    assert cli.main(["doctor"]) == 0
    assert "The course will run." in capsys.readouterr().out


def test_doctor_lives_where_torch_is_broken(tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so: cannot open shared object file')")
    command = [sys.executable, "-c", "import sys; from dtcourse.cli import main; sys.exit(main(['doctor']))"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 1, ended.stderr
    assert "torch: delete .venv" in ended.stdout


def test_a_reader_that_stops_reading_sees_no_traceback():
    pipe = f"set -o pipefail; {sys.executable} -m dtcourse.cli demo ring --ranks 2 | head -1"
    ended = subprocess.run(["bash", "-c", pipe], capture_output=True, text=True, check=False)
    assert "Traceback" not in ended.stderr
