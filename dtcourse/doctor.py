"""What is on this machine, which way each lesson will run on it, and what to do about what is missing.

Knows nothing else of the course. What may crash (a broken CUDA installation, a forbidden system call) is asked in a
child process, by `probe.py`. So every check survives its own failure, and the doctor survives them all.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from dtcourse.probe import ask

GOOD, NOTE, MISSING = "ok", "note", "MISSING"
PACKAGES = ("jupyterlab", "ipywidgets", "anywidget", "matplotlib", "scikit-learn", "cloudpickle", "pytest")
AGAIN = "delete .venv and run `make lab`"
GIB = 2**30
RANKS = 4  # of most lessons


@dataclass(frozen=True)
class Finding:
    """One thing about this machine. Only `MISSING` keeps the course from running."""

    topic: str
    value: str
    state: str = GOOD
    advice: str = ""


@dataclass(frozen=True)
class Report:
    """What was found, and `(lesson, way it will run)` for each lesson there is."""

    findings: list[Finding]
    lessons: list[tuple[str, str]]

    @property
    def ready(self) -> bool:
        return all(f.state != MISSING for f in self.findings)


def examine(lessons: Path) -> Report:
    """Look at this machine, and at the notebooks in the folder `lessons`."""
    findings = [finding for check in CHECKS for finding in _survive(check)]
    broken = any(f.state == MISSING for f in findings)
    gpus = sum(f.topic.startswith("GPU ") for f in findings)
    way = "not yet: see below" if broken else _way(gpus)
    return Report(findings, [(path.stem, way) for path in sorted(lessons.glob("*.ipynb"))])


def _way(gpus: int) -> str:
    """Most lessons start four ranks."""
    if not gpus or os.environ.get("DTCOURSE_DEVICE") == "cpu":
        return "ranks on the CPU, over shared memory"
    if gpus < RANKS:
        return f"{RANKS} ranks share {'your GPU' if gpus == 1 else f'your {gpus} GPUs'}, through pinned memory"
    return "a GPU for each rank, over NCCL"


def render(report: Report) -> str:
    """The report as text, in three parts."""
    rows = [(f.topic, f.value if f.state == GOOD else f"{f.value}   [{f.state}]") for f in report.findings]
    advice = [f"{f.topic}: {f.advice}" for f in report.findings if f.advice]
    parts = {
        "On this machine": _table(rows),
        "How each lesson will run here": _table(report.lessons or [("no lesson", "found")]),
        "What to do": [f"  - {line}" for line in advice or ["nothing: all is there"]],
    }
    text = "\n\n".join("\n".join([title, *lines]) for title, lines in parts.items())
    return f"{text}\n\nThe course will {'run' if report.ready else 'not run yet'}."


def _table(rows: list[tuple[str, str]]) -> list[str]:
    width = max(len(left) for left, _ in rows)
    return [f"  {left:<{width}}   {right}" for left, right in rows]


def _survive(check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    try:
        yield from check()
    except Exception as problem:
        topic = check.__name__.strip("_").replace("_", " ")
        yield Finding(topic, f"could not look: {type(problem).__name__}: {problem}", NOTE)


# -- checks: each yields what it found ---------------------------------------------------------------------------------


def _unless(good: bool, state: str, advice: str) -> tuple[str, str] | tuple[()]:
    return () if good else (state, advice)


def _python() -> Iterator[Finding]:
    new = sys.version_info >= (3, 11)
    yield Finding("Python", platform.python_version(), *_unless(new, MISSING, "install 3.11 or newer"))


def _system() -> Iterator[Finding]:
    wsl = "microsoft" in platform.release().lower()
    name = f"{platform.system()} {platform.release()} {platform.machine()}{', WSL' if wsl else ''}"
    if platform.system() == "Windows":
        yield Finding("system", name, MISSING, "install WSL2 (wsl --install) and run the course inside it")
    elif wsl and __file__.startswith("/mnt/"):
        yield Finding("system", name, NOTE, "move this folder into the Linux file system (~): /mnt is slow")
    else:
        yield Finding("system", name)


def _cores() -> Iterator[Finding]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    advice = "with one core the ranks take turns: all works, but timings say little"
    yield Finding("CPU cores", str(cores), *_unless(cores > 1, NOTE, advice))


def _memory() -> Iterator[Finding]:
    size = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = Path("/sys/fs/cgroup/memory.max")  # of the container, if this is one
    if limit.exists() and (text := limit.read_text().strip()).isdigit():
        size = min(size, int(text))
    advice = "close other programs; four ranks and JupyterLab want about 4 GB"
    yield Finding("memory", f"{size / GIB:.1f} GiB", *_unless(size > 3.5 * GIB, NOTE, advice))


def _shared_memory() -> Iterator[Finding]:
    if not Path("/dev/shm").is_dir():
        yield Finding("shared memory", "no /dev/shm on this system")
        return
    size = shutil.disk_usage("/dev/shm").total
    advice = "in Docker, start with --shm-size=1g"
    yield Finding("shared memory", f"{size / GIB:.2f} GiB in /dev/shm", *_unless(size > GIB / 4, NOTE, advice))


def _packages() -> Iterator[Finding]:
    for name in PACKAGES:
        try:
            yield Finding(name, metadata.version(name))
        except metadata.PackageNotFoundError:
            yield Finding(name, "not installed", MISSING, AGAIN)


def _torch() -> Iterator[Finding]:
    facts = json.loads(ask("torch") or "{}")
    if not facts:
        yield Finding("torch", "not installed, or broken", MISSING, f"{AGAIN}; then `import torch` must work")
        return
    new = tuple(map(int, facts["torch"].split(".")[:2])) >= (2, 11)
    built = f"built with CUDA {facts['cuda']}" if facts["cuda"] else "built for the CPU"
    yield Finding("torch", f"{facts['torch']}, {built}", *_unless(new, MISSING, f"needs 2.11 or newer: {AGAIN}"))
    advice = "this build of torch lacks gloo: install torch from the Python package index"
    yield Finding("gloo", "there" if facts["gloo"] else "not in this build", *_unless(facts["gloo"], MISSING, advice))
    yield Finding("NCCL", facts["nccl"] or "not in this build (it needs CUDA; no lesson needs it)")
    yield from _gpus(json.loads(ask("gpus") or "null") if facts["cuda"] else [])


def _gpus(devices: list[dict[str, Any]] | None) -> Iterator[Finding]:
    if devices is None:
        advice = "no lesson needs a GPU; to repair CUDA, begin with what nvidia-smi says"
        yield Finding("GPUs", "asking CUDA failed", NOTE, advice)
    elif not devices:
        yield Finding("GPUs", "none that torch can use (no lesson needs one)")
    for number, device in enumerate(devices or []):
        peers = "direct access to GPU " + ", ".join(map(str, device["peers"])) if device["peers"] else "no peers"
        yield Finding(f"GPU {number}", f"{device['name']}, {device['memory'] / GIB:.0f} GiB, {peers}")


def _loopback() -> Iterator[Finding]:
    names = [name for _, name in socket.if_nameindex() if name.startswith("lo")]
    advice = "the ranks talk over the loopback interface: bring it up (as root: ip link set lo up)"
    yield Finding("loopback", ", ".join(names) or "no interface", *_unless(bool(names), MISSING, advice))
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=5).close()
        yield Finding("loopback port", "can be opened and reached")
    except OSError as problem:
        yield Finding("loopback port", str(problem), MISSING, "let programs connect to 127.0.0.1 (firewall, sandbox)")


def _private_folder() -> Iterator[Finding]:
    try:
        with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as server:
            server.bind(f"{folder}/socket")
        yield Finding("temporary files", tempfile.gettempdir())
    except OSError as problem:
        advice = "set TMPDIR to a short path on a local disk where you may write"
        yield Finding("temporary files", str(problem), MISSING, advice)


def _neighbour_memory() -> Iterator[Finding]:
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    scope_text = f", ptrace_scope {scope.read_text().strip()}" if scope.exists() else ""
    ours = ctypes.create_string_buffer(b"hello")
    allowed = ask("memory", str(os.getpid()), str(ctypes.addressof(ours)), "5") == "hello"
    yield Finding(
        "process_vm_readv",
        f"{'allowed' if allowed else 'not allowed: messages take two copies instead of one'}{scope_text}",
    )


CHECKS = (
    _python, _system, _cores, _memory, _shared_memory, _packages, _torch, _loopback, _private_folder, _neighbour_memory,
)  # fmt: skip
