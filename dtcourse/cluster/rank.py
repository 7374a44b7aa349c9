"""A rank: the process in which the reader's functions run.

Forked from the fork server; joins the process group under the recorder, then answers one request after another
until the pipe from the reader's process closes.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import pickle
import random
import signal
import sys
import traceback
from dataclasses import replace
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from dtcourse import events
from dtcourse.backends import shared_memory
from dtcourse.backends.deaths import MortalStore
from dtcourse.backends.delayed import DelayedWork
from dtcourse.backends.every_group import record_all_groups
from dtcourse.backends.link import EmulatedLink
from dtcourse.backends.recorded_work import RecordedWork
from dtcourse.backends.recording import RanksDisagree, Recording
from dtcourse.backends.tape import Files
from dtcourse.cluster.groups import Groups
from dtcourse.cluster.home import at_home, pack, sound, unpack
from dtcourse.errors import RankDied
from dtcourse.failures import Failure, failure_of
from dtcourse.network import Link, Network

_LONG = timedelta(days=30)  # the cluster decides how long a run may take, and a rank held at a step is not late


class Order:
    """Flags in the first byte of a request; the pickled function and arguments follow."""

    WATCH = 1  # keep payloads and arguments
    HELD = 2  # stand still before each step
    KEEP_GROUPS = 4  # process groups made now are for later


class Answer(NamedTuple):
    """What comes back: a pickled result or a failure, and whether operations were left pending.

    `spoilt`: the function took away what the next one needs, as by `dist.destroy_process_group()`.
    """

    result: bytes | None
    failure: Failure | None
    pending: int
    spoilt: bool = False


def serve(
    fds: list[int],
    *,
    rank: int,
    world_size: int,
    meeting_place: str,
    backend: str,
    device: str,
    folder: str,
    path: list[str],
    strict: bool,
    link: Link | Network | None,
    slowness: float,
    environ: dict,
) -> None:
    """The life of a rank. `fds`: requests, answers, output, stack, gate, ports, then the tapes of all ranks."""
    requests_fd, answers_fd, output, stack, gate, ports, *tape_fds = fds
    _settle(rank, world_size, output, stack, folder, path, environ)
    tapes = [Files(*pair) for pair in zip(tape_fds[::2], tape_fds[1::2], strict=True)]
    home = torch.device(device)
    if home.type == "cuda":
        _open_gpu(home)
    recording = Recording(rank, tapes, gate, strict, home)
    recording.slowness = slowness
    recording.link = EmulatedLink(link, ports, tapes) if link else None
    record_all_groups(recording, DelayedWork if link else RecordedWork)
    shared_memory.register(recording.deaths)
    os.environ["DTCOURSE_FOLDER"] = meeting_place  # where groups may put files
    store: dist.Store = dist.FileStore(os.path.join(meeting_place, "store"), world_size)
    if backend == shared_memory.NAME:
        store = MortalStore(store, recording.deaths)
    requests, answers = Connection(requests_fd, writable=False), Connection(answers_fd, readable=False)
    _keep_to_this_process(fds, requests, answers)
    with contextlib.suppress(EOFError, ConnectionError):
        dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=_LONG)
        answers.send(_how(backend, home))
        groups, button, streams = Groups(store), _StopButton(), (sys.stdout, sys.stderr)
        while True:
            request = requests.recv_bytes()
            groups.forget()
            sys.stdout, sys.stderr = streams  # the function before may have put others there
            answer = _carry_out(request, recording, button)
            whole = groups.whole() and _can_print(streams) and sound(home)
            answers.send_bytes(pickle.dumps(tuple(answer._replace(spoilt=not whole))))
            groups.note(keep=bool(request[0] & Order.KEEP_GROUPS))


def _settle(rank: int, world: int, output: int, stack: int, folder: str, path: list[str], environ: dict) -> None:
    """Make the forked process a process of its own."""
    os.environ.clear()
    os.environ.update(environ)
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), GLOO_SOCKET_IFNAME=loopback)
    sys.path[:] = path
    with contextlib.suppress(OSError):
        os.chdir(folder)
    for fd in (1, 2):
        os.dup2(output, fd)
    os.close(output)
    for number in (1, 2):
        stream = os.fdopen(number, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
        setattr(sys, "stdout" if number == 1 else "stderr", stream)
    random.seed()
    np.random.seed()
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // world))
    # where a rank is can then be asked even while it sits in a library call
    faulthandler.register(signal.SIGUSR1, file=stack, all_threads=False)
    if sys.platform == "linux":
        parent_dies = 1  # PR_SET_PDEATHSIG
        ctypes.CDLL(None).prctl(parent_dies, signal.SIGKILL)


def _keep_to_this_process(fds: list[int], *connections: Connection) -> None:
    """The reader's process knows a rank's death by its closed pipe: no child of the rank may hold it open."""
    for fd in fds:
        with contextlib.suppress(OSError):  # one that `_settle` has closed
            os.set_inheritable(fd, False)
    for connection in connections:
        os.register_at_fork(after_in_child=connection.close)


def _open_gpu(device: torch.device) -> None:
    loopback = os.environ["GLOO_SOCKET_IFNAME"]
    os.environ.setdefault("NCCL_SOCKET_IFNAME", loopback)  # where the ranks of one machine find each other
    # memory of the process that the GPU is told of, not memory of the driver's: the kernel can then copy from it
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "pinned_use_cuda_host_register:True")
    torch.cuda.set_device(device)
    torch.cuda.init()


def _how(backend: str, device: torch.device) -> str:
    """The backend, and by which way it moves bytes."""
    windows = getattr(dist.group.WORLD.inner, "windows", None)
    if not windows:
        return backend
    return f"{backend} ({windows.name}{', through pinned memory' if device.type == 'cuda' else ''})"


class _StopButton:
    """SIGINT interrupts the reader's function, and nothing else."""

    def __init__(self) -> None:
        self.heard = False
        signal.signal(signal.SIGINT, self._press)

    def _press(self, number: int, frame: Any) -> None:
        if self.heard:
            raise KeyboardInterrupt


def _carry_out(request: bytes, recording: Recording, button: _StopButton) -> Answer:
    order, result, failure = request[0], None, None
    try:
        button.heard = True
        function, args, kwargs = unpack(memoryview(request)[1:], recording.device)
        tensors = tuple(a for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor))
        recording.rewind(watched=tensors if order & Order.WATCH else None, held=bool(order & Order.HELD))
        events.record_into(recording)
        with at_home(recording.device, before_a_stop=recording.settle):
            value = _call(function, args, kwargs)
        recording.end(returned=True)
        result = _dumps(value)
    except BaseException as problem:  # SystemExit and KeyboardInterrupt too: the rank lives on
        button.heard = False  # pressed again: what happened is put into words all the same
        failure = _failure(problem)
    finally:
        button.heard = False
        events.record_into(None)
        recording.end(returned=False)
        _flush()
    return Answer(result, failure, recording.pending)


def _call(function: Any, args: Any, kwargs: Any) -> Any:
    here = os.getpid()
    try:
        return function(*args, **kwargs)
    finally:
        if os.getpid() != here:  # a child that the function has forked, and that came back with it
            if sys.exc_info()[0]:
                traceback.print_exc()
            _flush()
            os._exit(int(sys.exc_info()[0] is not None))


def _can_print(streams: tuple[Any, Any]) -> bool:
    try:
        return not any(stream.closed or not os.fstat(number) for number, stream in enumerate(streams, 1))
    except OSError:
        return False


def _dumps(value: Any) -> bytes:
    try:
        return pack(value)
    except Exception as problem:
        raise CannotBeReturned(
            f"the function returned a {type(value).__name__}, which cannot be sent back ({problem}). "
            "Return tensors, numbers, strings, or lists and dicts of them"
        ) from None


class CannotBeReturned(TypeError):
    """The result of a function cannot be pickled."""


def _failure(problem: BaseException) -> Failure:
    return replace(
        failure_of(problem, machinery=__file__),
        disagree=(problem.first, problem.second) if isinstance(problem, RanksDisagree) else None,
        died=problem.rank if isinstance(problem, RankDied) else None,
    )


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
