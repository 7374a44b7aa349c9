"""The fork server: a small process that has torch loaded and makes ranks by forking itself.

The reader's process (often a notebook kernel full of threads) is never forked. The server runs no code of the
reader's, so it is always there to end the ranks: when it is told to, or when the reader's process is gone,
however it went. `main` is the server; `ForkServer` is the way to talk to it.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import pickle
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from typing import Any

from dtcourse.cluster.interrupts import in_one_piece

_I_AM_ONE = "DTCOURSE_FORK_SERVER"
_LOOK = 0.1  # seconds between two looks at the stop button
_HEADER = 8  # bytes: length of the pickled message that follows
_READY = "ready"  # the server's greeting, once torch is loaded: that takes as long as the disk takes
_PATIENCE = 120.0  # seconds for an answer of the server after that
_STOP_PATIENCE = 1.0  # seconds, once the stop button is pressed


def _receive(sock: socket.socket) -> tuple[Any, list[int]]:
    """The next message, and the descriptors that came with it."""
    header, fds, _, _ = socket.recv_fds(sock, _HEADER, 253)
    while len(header) < _HEADER:
        if not (part := sock.recv(_HEADER - len(header))):
            raise EOFError
        header += part
    size, body = int.from_bytes(header, "big"), b""
    while len(body) < size:
        if not (part := sock.recv(size - len(body))):
            raise EOFError
        body += part
    return pickle.loads(body), fds


def _send(sock: socket.socket, message: Any, fds: tuple[int, ...] = ()) -> None:
    body = pickle.dumps(message)
    socket.send_fds(sock, [len(body).to_bytes(_HEADER, "big")], fds)
    sock.sendall(body)


class ForkServer:
    """The reader's end. One server serves all clusters of a process."""

    _shared: ForkServer | None = None
    _creating = threading.Lock()

    @classmethod
    def shared(cls) -> ForkServer:
        """The server of this process, started if there is none."""
        with cls._creating:
            if cls._shared is None or not cls._shared.alive():
                cls._shared = ForkServer()
            return cls._shared

    @classmethod
    def start_early(cls) -> None:
        """Start the server of this process, unless this is the server, before anybody needs it."""
        if _I_AM_ONE not in os.environ:
            cls.shared()

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self._sock, theirs = socket.socketpair()
        root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        # idle threads of numpy's library would be forked along, to no use
        environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": _prepend(root), _I_AM_ONE: "1"}
        # pages of 2 MB, where there are any: the kernel looks up page after page when ranks read each other's memory
        # (torch's own THP_MEM_ALLOC_ENABLE makes every new tensor of 4 MB wait for fresh memory)
        environment.setdefault("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
        with theirs:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-c",
                    "from dtcourse.cluster.forkserver import main; main()",
                    str(theirs.fileno()),
                ],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # a Ctrl-C in the terminal is for the reader's process alone
                env=environment,
            )
        self._sock.settimeout(_PATIENCE)
        self._greeted = False
        self._broken = False
        atexit.register(self.close)

    def ours(self) -> bool:
        """Whether this process started the server, and is not a fork of the one that did."""
        return self._owner == os.getpid()

    def alive(self) -> bool:
        return self.ours() and not self._broken and self._process.poll() is None

    def fork(self, arguments: dict[str, Any], fds: tuple[int, ...]) -> int:
        """Make a rank: `rank.serve(fds, **arguments)` in a new process. Its process number."""
        return self._ask(("fork", arguments), fds)

    def end(self, pids: list[int]) -> dict[int, int]:
        """Kill these ranks and all they started. Their wait statuses: how each ended, or had ended before."""
        return self._ask(("end", pids))

    def guard(self, folder: str) -> None:
        """Remove this folder when the reader's process ends."""
        self._ask(("guard", folder))

    def _ask(self, request: Any, fds: tuple[int, ...] = ()) -> Any:
        with self._lock:
            while not self._greeted and not _readable(self._sock, _LOOK):
                pass  # here the stop button is heard at once
            with in_one_piece() as pressed:  # half a question, or an answer left behind, would end all talk
                try:
                    self._greeted = self._greeted or _receive(self._sock)[0] == _READY
                    _send(self._sock, request, fds)
                    self._await_answer(pressed)
                    answer = _receive(self._sock)[0]
                except (OSError, EOFError):
                    self._broken = True
                    self._hang_up()
                    raise
        if isinstance(answer, OSError):  # too many processes, or no memory
            raise answer
        return answer

    def _await_answer(self, pressed: list[int]) -> None:
        """Raises TimeoutError if none comes: somebody has stopped the server, or its machine has no memory left."""
        end = time.monotonic() + _PATIENCE
        while not _readable(self._sock, _LOOK):
            if pressed:
                end = min(end, time.monotonic() + _STOP_PATIENCE)
            if time.monotonic() > end:
                raise TimeoutError("the fork server does not answer")

    def _hang_up(self) -> None:
        """If the server is still there, it ends, and all ranks with it; also if somebody has stopped it."""
        self._sock.close()
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Let the server end; it ends all ranks first."""
        if self.ours():
            self._hang_up()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=5)


def _readable(sock: socket.socket, seconds: float) -> bool:
    """Whether there is something to read, or the other side is gone; waits a while for it."""
    poll = select.poll()  # not `select.select`: that knows only the first 1024 descriptors of a process
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(1000 * seconds))


def _prepend(folder: str) -> str:
    return os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])])


# -- the server itself ---------------------------------------------------------------------------------------------


class _Server:
    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._parent = os.getppid()
        self._ranks: set[int] = set()
        self._folders: list[str] = []

    def serve(self) -> None:
        try:
            _send(self._sock, _READY)
            while os.getppid() == self._parent:
                # a copy of the reader's process may keep the socket open after it: hence the look at the parent
                if _readable(self._sock, 1.0):
                    (kind, *rest), fds = _receive(self._sock)
                    try:
                        answer = getattr(self, f"_{kind}")(*rest, fds=fds)
                    except OSError as problem:
                        answer = problem
                    _send(self._sock, answer)
                elif not self._ranks:
                    self._use_the_pause()
        except (EOFError, ConnectionError):
            pass
        finally:
            self._end(list(self._ranks))
            for folder in self._folders:
                shutil.rmtree(folder, ignore_errors=True)

    def _use_the_pause(self) -> None:
        """Nobody has asked for a rank yet: load what each would load for its first optimizer, in a second or two."""
        if "torch._dynamo" not in sys.modules:
            import torch._dynamo  # noqa: F401

            gc.collect()
            gc.freeze()

    def _fork(self, arguments: dict[str, Any], fds: list[int]) -> int:
        try:
            pid = os.fork()
            if pid == 0:
                self._become_rank(arguments, fds)
            self._ranks.add(pid)
        finally:
            for fd in fds:
                os.close(fd)
        return pid

    def _become_rank(self, arguments: dict[str, Any], fds: list[int]) -> None:
        from dtcourse.cluster import rank

        code = 1
        try:
            self._sock.close()
            os.setsid()  # so that the rank and all it starts can be ended together
            rank.serve(fds, **arguments)
            code = 0
        except BaseException:
            traceback.print_exc()  # into the rank's output: the reader is told what it said
        finally:
            os._exit(code)

    def _end(self, pids: list[int], fds: list[int] = ()) -> dict[int, int]:  # type: ignore[assignment]
        ours = [pid for pid in pids if pid in self._ranks]
        for pid in ours:
            for kill in (os.killpg, os.kill):  # a rank that was born a moment ago leads no group yet
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    kill(pid, signal.SIGKILL)
        statuses = {pid: os.waitpid(pid, 0)[1] for pid in ours}
        self._ranks.difference_update(ours)
        return statuses

    def _guard(self, folder: str, fds: list[int]) -> None:
        self._folders.append(folder)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sock = socket.socket(fileno=int(sys.argv[1]))

    import dtcourse.cluster.rank  # noqa: F401 - so that every rank has it

    gc.collect()
    gc.freeze()  # or the first collection in each rank would copy all of torch's pages
    _Server(sock).serve()
