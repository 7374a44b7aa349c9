"""The keeper: a warm process with torch loaded, from which ranks are forked, each into a jail of its own.

It knows no tests and no solutions, since ranks begin as copies of it, and runs no code of a submission. When it is told
to, or when the grader is gone, it ends the jails and all that is in them. `main` is the keeper; `Keeper` is the way to
talk to it, in lines of JSON over a socket.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from dtcourse.grading.sandbox.jail import SUBMISSION, Jail, copy_submission

_PATIENCE = 120.0  # seconds for an answer
_END_PATIENCE = 5.0  # seconds for a jail to end
_LONGEST_LINE = 1 << 16  # bytes
_FIRST_USER = 1_000_000_000  # nobody has such a number; each jail of a keeper gets one of its own
_ROOM = Path(__file__).resolve().parents[3]
NO_JAIL = "no jail could be made on this machine: no submission can be run"


class Kept(NamedTuple):
    """The process that holds a jail: its number, and a descriptor that can be read from when it has ended (or -1)."""

    pid: int
    end: int


class Keeper:
    """The grader's end. `weaknesses`: what this machine's jails cannot do, in sentences."""

    _shared: Keeper | None = None
    _creating = threading.Lock()

    @classmethod
    def shared(cls) -> Keeper:
        """The keeper of this process: one is enough for all submissions."""
        with cls._creating:
            if cls._shared is None or not cls._shared.alive():
                cls._shared = Keeper()
            return cls._shared

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._sock, theirs = socket.socketpair()
        self._sock.settimeout(_PATIENCE)
        # nothing of the grader's environment: it may hold secrets, and ranks begin as copies of the keeper
        environment = {
            "PATH": os.defpath, "HOME": "/tmp", "USER": "rank", "LANG": "C.UTF-8", "PYTHONPATH": str(_ROOM),
            "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1",
            "MALLOC_ARENA_MAX": "2",  # each thread's own would take much of the memory that a jail may map
        }  # fmt: skip
        command = [sys.executable, "-P", "-c", "from dtcourse.grading.sandbox.keeper import main; main()"]
        with theirs:
            self._process = subprocess.Popen(
                [*command, str(theirs.fileno())], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, cwd="/",
                start_new_session=True, env=environment,
            )  # fmt: skip
        atexit.register(self.close)
        self._greeting: dict[str, Any] | None = None

    @property
    def _greeted(self) -> dict[str, Any]:
        with self._lock:
            if self._greeting is None:
                self._greeting = _receive(self._sock)[0]
        return self._greeting

    @property
    def weaknesses(self) -> list[str]:
        return self._greeted["weaknesses"]

    @property
    def users(self) -> range:
        """The numbers of the users in its jails, if it runs as root."""
        return _users(self._process.pid)

    @cached_property
    def modules(self) -> frozenset[str]:
        """The modules of the course that every rank has."""
        return frozenset(self._greeted["modules"])

    def show(self, folder: str) -> str:
        """What ranks shall call the folder of their submission. Where they have no root of their own, it is a copy."""
        return SUBMISSION if self._greeted["own_root"] else self._ask({"do": "show", "folder": folder})[0]

    def hide(self, seen: str) -> None:
        """No rank sees this folder any more."""
        if seen != SUBMISSION:
            self._ask({"do": "hide", "seen": seen})

    def alive(self) -> bool:
        return self._owner == os.getpid() and self._process.poll() is None

    def fork(self, rank: int, folder: str, descriptors: list[int]) -> Kept:
        """A rank in a jail, which sees `folder` and has these `descriptors`. Raises OSError if there cannot be one."""
        answer, received = self._ask({"do": "fork", "rank": rank, "folder": folder}, descriptors)
        return Kept(answer, received[0] if received else -1)

    def end(self, pids: list[int]) -> dict[int, int]:
        """End these jails, with all that is in them; how each ended, a wait status."""
        return {int(pid): status for pid, status in self._ask({"do": "end", "pids": pids})[0].items()}

    def _ask(self, words: dict[str, Any], descriptors: list[int] = ()) -> tuple[Any, list[int]]:  # type: ignore[assignment]
        _ = self._greeted  # comes first
        with self._lock:
            _send(self._sock, words, descriptors)
            answer, received = _receive(self._sock)
        if isinstance(answer, dict) and "problem" in answer:
            raise OSError(answer["problem"])
        return answer, received

    def close(self) -> None:
        """Let the keeper end; it ends all jails first."""
        if self._owner == os.getpid():
            self._sock.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=_END_PATIENCE)


def _users(keeper: int) -> range:
    """In a container there may be only so many users: then the last ones of those, as far as keepers go."""
    first = _FIRST_USER + keeper * 256
    with contextlib.suppress(OSError), open("/proc/self/uid_map") as mapping:
        there = sum(int(line.split()[2]) for line in mapping)
        if there <= first + 256:
            first = max(1, there - 256 * (1 + keeper % 128))
    return range(first, first + 256)


def _send(sock: socket.socket, words: Any, descriptors: list[int] = ()) -> None:  # type: ignore[assignment]
    line = json.dumps(words).encode() + b"\n"
    socket.send_fds(sock, [line], descriptors)


def _receive(sock: socket.socket) -> tuple[Any, list[int]]:
    """One line, and the descriptors that came with it. Each side waits for the other's before it sends again."""
    line, descriptors, _, _ = socket.recv_fds(sock, _LONGEST_LINE, 8)
    while not line.endswith(b"\n"):
        if not (part := sock.recv(_LONGEST_LINE)):
            raise EOFError("the keeper is gone")
        line += part
    return json.loads(line), descriptors


# -- the keeper itself -------------------------------------------------------------------------------------------------


class _Keeper:
    def __init__(self, sock: socket.socket, point: str) -> None:
        self._sock, self._point = sock, point
        self._jails: dict[int, int] = {}  # the process that holds it -> the user in it
        self._parent = os.getppid()

    def serve(self) -> None:
        try:
            _send(self._sock, self._greeting())
            while os.getppid() == self._parent:
                if not select.select([self._sock], [], [], 1.0)[0]:
                    continue
                words, descriptors = _receive(self._sock)
                try:
                    answer, given = getattr(self, f"_{words.pop('do')}")(descriptors, **words)
                except OSError as problem:
                    answer, given = {"problem": str(problem)}, []
                _send(self._sock, answer, given)
                for descriptor in (*descriptors, *given):
                    os.close(descriptor)
        except (EOFError, ConnectionError):
            pass
        finally:
            self._end([], list(self._jails))

    def _greeting(self) -> dict[str, Any]:
        """What a jail on this machine is like, and what of the course a rank has."""
        with tempfile.TemporaryDirectory() as nothing:
            return self._looks_of(Jail(nothing, self._point, self._free_user()))

    def _looks_of(self, jail: Jail) -> dict[str, Any]:
        reading, writing = os.pipe()
        if (pid := os.fork()) == 0:
            looks = lambda: {"weaknesses": jail.weaknesses, "own_root": os.path.isdir(SUBMISSION)}  # noqa: E731
            jail.run([writing], lambda: os.write(writing, json.dumps(looks()).encode()))
        os.close(writing)
        said = os.read(reading, _LONGEST_LINE)
        os.close(reading)
        os.waitpid(pid, 0)
        known = json.loads(said) if said else {"weaknesses": [NO_JAIL], "own_root": False}
        self._sure, self._namespaces = not known["weaknesses"], known["own_root"]
        return known | {"modules": [name for name in sys.modules if name.startswith("dtcourse")]}

    def _fork(self, descriptors: list[int], rank: int, folder: str) -> tuple[int, list[int]]:
        jail = Jail(folder, self._point, self._free_user(), self._sure, self._namespaces)
        if (pid := os.fork()) == 0:
            self._sock.close()
            from dtcourse.grading.sandbox.rank import serve

            jail.run(descriptors, lambda: serve(rank, *descriptors))
        self._jails[pid] = jail.user
        return pid, [os.pidfd_open(pid)] if hasattr(os, "pidfd_open") else []

    def _show(self, descriptors: list[int], folder: str) -> tuple[str, list[int]]:
        os.chmod(self._point, 0o711)
        place = tempfile.mkdtemp(dir=self._point)
        os.chmod(place, 0o755)
        copy_submission(folder, place)
        return place, []

    def _hide(self, descriptors: list[int], seen: str) -> tuple[None, list[int]]:
        if os.path.dirname(seen) == self._point:
            shutil.rmtree(seen, ignore_errors=True)
        return None, []

    def _free_user(self) -> int:
        return next(user for user in _users(os.getpid()) if user not in self._jails.values())

    def _end(self, descriptors: list[int], pids: list[int]) -> tuple[dict[int, int], list[int]]:
        ours = [pid for pid in pids if pid in self._jails]
        for pid in ours:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        statuses = {pid: os.waitpid(pid, 0)[1] for pid in ours}
        for pid in ours:
            del self._jails[pid]
        return statuses, []


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # heard by those who hold a jail, once they do
    sock = socket.socket(fileno=int(sys.argv[1]))

    from dtcourse.grading.sandbox.rank import warm_up

    warm_up()
    gc.collect()
    gc.freeze()  # or the first collection in each rank would copy all of torch's pages
    with tempfile.TemporaryDirectory(prefix="dtcourse-jail-") as point:
        _Keeper(sock, point).serve()
