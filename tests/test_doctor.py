"""The doctor: what it finds here, what it says about machines that lack something, and that nothing crashes it."""

import json
import os

import pytest

from dtcourse import doctor, probe
from dtcourse.doctor import GOOD, MISSING, NOTE, Finding, Report, examine, render

CPU_BUILD = {"torch": "2.13.0+cpu", "cuda": None, "gloo": True, "nccl": None}
CUDA_BUILD = {"torch": "2.13.0", "cuda": "13.0", "gloo": True, "nccl": "2.29.7"}


@pytest.fixture
def answers(monkeypatch):
    """What the child process answers: a test fills it in; what is not there is a crash."""
    given = {}
    monkeypatch.setattr(doctor, "ask", lambda question, *_: json.dumps(given[question]) if question in given else "")
    return given


def found(check) -> dict[str, Finding]:
    return {finding.topic: finding for finding in check()}


def test_this_machine_runs_the_course(tmp_path):
    (tmp_path / "04 ring.ipynb").touch()
    report = examine(tmp_path)
    assert report.ready, render(report)
    topics = {finding.topic for finding in report.findings}
    assert topics >= {"Python", "CPU cores", "memory", "torch", "gloo", "NCCL", "loopback port", "process_vm_readv"}
    assert report.lessons[0][0] == "04 ring"
    assert "CPU" in report.lessons[0][1]


def test_every_check_survives_its_own_failure(monkeypatch, tmp_path):
    def half() -> object:
        yield Finding("half", "seen")
        raise RuntimeError("no such call")

    monkeypatch.setattr(doctor, "CHECKS", (half, doctor._python))
    report = examine(tmp_path)
    assert [finding.topic for finding in report.findings] == ["half", "half", "Python"]
    assert report.findings[1].value == "could not look: RuntimeError: no such call"
    assert report.ready


def test_torch_that_does_not_import_is_named_and_nothing_runs(answers, tmp_path):
    (tmp_path / "00 start.ipynb").touch()
    report = examine(tmp_path)
    assert not report.ready
    assert report.lessons == [("00 start", "not yet: see below")]
    assert "torch: delete .venv" in render(report)


def test_old_torch_is_refused(answers):
    answers["torch"] = CPU_BUILD | {"torch": "2.9.1+cpu"}
    assert found(doctor._torch)["torch"].state == MISSING


def test_broken_cuda_is_only_a_note(answers):
    answers["torch"] = CUDA_BUILD
    gpus = found(doctor._torch)["GPUs"]
    assert (gpus.state, gpus.value) == (NOTE, "asking CUDA failed")


def test_gpus_are_listed_and_the_lessons_use_them(answers, tmp_path, monkeypatch):
    monkeypatch.delenv("DTCOURSE_DEVICE", raising=False)
    (tmp_path / "00 start.ipynb").touch()
    answers["torch"] = CUDA_BUILD
    gpu = {"name": "H200", "memory": 139 * 2**30}
    answers["gpus"] = [gpu | {"peers": [1]}, gpu | {"peers": []}]
    report = examine(tmp_path)
    text = render(report)
    assert "H200, 139 GiB, direct access to GPU 1" in text
    assert "H200, 139 GiB, no peers" in text
    assert "2.29.7" in text
    assert report.lessons[0][1] == "4 ranks share your 2 GPUs, through pinned memory"
    answers["gpus"] = [gpu | {"peers": []}] * 4
    assert examine(tmp_path).lessons[0][1] == "a GPU for each rank, over NCCL"
    monkeypatch.setenv("DTCOURSE_DEVICE", "cpu")
    assert examine(tmp_path).lessons[0][1] == "ranks on the CPU, over shared memory"


def test_a_package_that_is_not_there(monkeypatch):
    monkeypatch.setattr(doctor, "PACKAGES", ("jupyterlab", "no-such-package"))
    packages = found(doctor._packages)
    assert packages["jupyterlab"].state == GOOD
    assert packages["no-such-package"].state == MISSING


def test_a_temporary_folder_too_long_for_sockets(monkeypatch, tmp_path):
    deep = tmp_path / ("long" * 40)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    assert "TMPDIR" in found(doctor._private_folder)["temporary files"].advice


@pytest.mark.parametrize(
    ("release", "file", "state"), [("5.15-microsoft-WSL2", "/mnt/c/x.py", NOTE), ("6.1", "/x.py", GOOD)]
)
def test_wsl_on_the_windows_disk(monkeypatch, release, file, state):
    monkeypatch.setattr("platform.release", lambda: release)
    monkeypatch.setattr(doctor, "__file__", file)
    assert found(doctor._system)["system"].state == state


def test_native_windows_is_sent_to_wsl(monkeypatch):
    monkeypatch.setattr("platform.system", lambda: "Windows")
    assert "WSL2" in found(doctor._system)["system"].advice


def test_a_child_that_crashes_answers_nothing():
    assert probe.ask("memory", str(os.getpid()), "0", "no number") == ""
    assert probe.ask("no such question") == ""


def test_text_has_three_parts_and_a_verdict():
    finding = Finding("gloo", "not in this build", MISSING, "install another torch")
    assert render(Report([finding], [("00 start", "not yet")])) == (
        "On this machine\n  gloo   not in this build   [MISSING]\n\n"
        "How each lesson will run here\n  00 start   not yet\n\n"
        "What to do\n  - gloo: install another torch\n\n"
        "The course will not run yet."
    )
