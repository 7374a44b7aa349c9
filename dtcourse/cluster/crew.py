"""The crew: the rank processes of a cluster, from their start to their end, and the ways to talk to them."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import selectors
import shutil
import signal
import sys
import tempfile
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from types import MappingProxyType

from dtcourse.backends import deaths
from dtcourse.backends.link import create_ports
from dtcourse.backends.tape import Files, Reader, anonymous_file
from dtcourse.cluster.devices import Placement
from dtcourse.cluster.forkserver import ForkServer
from dtcourse.cluster.interrupts import in_one_piece
from dtcourse.errors import RankDied
from dtcourse.network import Link, Network


@dataclass(eq=False)
class Member:
    """One rank, seen from the reader's process."""

    rank: int
    pid: int
    server: ForkServer  # which forked it
    requests: Connection
    answers: Connection
    output: int  # what it prints; never blocks
    stack: int  # a file into which it writes where it is, when asked

    def stack_as_text(self) -> str:
        """Asks the rank where it is: the lines of faulthandler, the innermost first."""
        os.ftruncate(self.stack, 0)
        os.lseek(self.stack, 0, os.SEEK_SET)
        os.kill(self.pid, signal.SIGUSR1)
        time.sleep(0.1)
        return os.pread(self.stack, 1 << 16, 0).decode(errors="replace")


class Crew:
    """A rank for each device, joined in a process group of the backend. Raises RankDied if they cannot be started."""

    def __init__(
        self,
        placement: Placement,
        strict: bool = False,
        link: Link | Network | None = None,
        slow: Mapping[int, float] = MappingProxyType({}),
    ) -> None:
        self.devices, self.backend = placement
        self.world_size, self.strict = len(self.devices), strict
        self.link, self.slow = link, slow
        self.tapes = [Files.create() for _ in self.devices]
        self.readers = [Reader(files) for files in self.tapes]
        self.gate, self.ports = anonymous_file(), create_ports(self.world_size)
        self.folder = tempfile.mkdtemp(prefix="dtcourse-")  # of mode 0700
        self.members: list[Member] = []
        self.how = self.backend  # as the ranks say it
        self.selector = selectors.DefaultSelector()
        self._owner = os.getpid()
        self._starts = 0
        files = self.gate, self.ports
        self._end = weakref.finalize(self, _end, os.getpid(), self.members, self.tapes, files, self.folder)
        self._server = self._guarding_server()
        self.start()

    def start(self) -> None:
        """Start the ranks, in place of any there are."""
        self.end()
        if not self._server.alive():
            self._server = self._guarding_server()
        deaths.clear(self.gate)
        self._starts += 1
        self._make_meeting_place()
        try:
            for rank in range(self.world_size):
                with in_one_piece():
                    self.members.append(self._fork(rank, self._meeting_place))
            waiting = {member.answers: member for member in self.members}
            while waiting:  # in the order in which they come: one that dies leaves the others waiting for it
                for answers in wait(list(waiting)):
                    self._take_in(waiting.pop(answers))
        except BaseException:  # the stop button, too: all ranks or none
            self.end()
            raise

    @property
    def ready(self) -> bool:
        """Whether there are ranks, and the folder in which they meet: somebody may clean /tmp meanwhile."""
        return bool(self.members) and os.path.isdir(self._meeting_place)

    @property
    def _meeting_place(self) -> str:
        return os.path.join(self.folder, str(self._starts))

    def _make_meeting_place(self) -> None:
        with contextlib.suppress(FileExistsError):
            os.mkdir(self.folder, 0o700)  # somebody has removed it
        if os.lstat(self.folder).st_uid != os.getuid():
            raise PermissionError(f"{self.folder} belongs to somebody else: make a new cluster with Cluster(...)")
        os.mkdir(self._meeting_place, 0o700)

    def _guarding_server(self) -> ForkServer:
        try:
            server = ForkServer.shared()
            server.guard(self.folder)
        except (OSError, EOFError):  # it has died, and nobody had noticed
            server = ForkServer.shared()
            server.guard(self.folder)
        return server

    def _fork(self, rank: int, meeting_place: str) -> Member:
        their_requests, requests = multiprocessing.Pipe(duplex=False)  # two pipes are faster than one socket
        answers, their_answers = multiprocessing.Pipe(duplex=False)
        output, their_output = os.pipe()
        os.set_blocking(output, False)
        stack = anonymous_file()
        ends = (their_requests.fileno(), their_answers.fileno(), their_output)
        fds = (*ends, stack, self.gate, self.ports, *(fd for t in self.tapes for fd in (t.records, t.reel)))
        arguments = {
            "rank": rank,
            "world_size": self.world_size,
            "meeting_place": meeting_place,
            "backend": self.backend,
            "device": self.devices[rank],
            "strict": self.strict,
            "link": self.link,
            "slowness": self.slow.get(rank, 1.0),
            "folder": _working_folder(),
            "path": sys.path,
            "environ": dict(os.environ),
        }
        try:
            pid = self._server.fork(arguments, fds)
        finally:
            their_requests.close()
            their_answers.close()
            os.close(their_output)
        return Member(rank, pid, self._server, requests, answers, output, stack)

    def _take_in(self, member: Member) -> None:
        """A rank says that it is ready, or its pipe has closed."""
        try:
            self.how = member.answers.recv()
        except (EOFError, ConnectionError):
            self._server.end([member.pid])  # so that it has said all
            said = b""
            with contextlib.suppress(BlockingIOError):
                said = os.read(member.output, 1 << 16)
            text = f"rank {member.rank} did not start. It said:\n{said.decode(errors='replace')}"
            raise RankDied(text, rank=member.rank) from None
        self.selector.register(member.answers, selectors.EVENT_READ, (member, "answer"))
        self.selector.register(member.output, selectors.EVENT_READ, (member, "output"))

    def end(self) -> dict[int, int]:
        """End all ranks; how each ended (a wait status), by rank."""
        with in_one_piece():
            statuses = _end_members(self.members, self.selector)
            self.members.clear()
        shutil.rmtree(self._meeting_place, ignore_errors=True)
        return statuses

    def interrupt(self, member: Member) -> None:
        """What the stop button does to a program."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(member.pid, signal.SIGINT)

    def close(self) -> None:
        self.end()
        self._end()

    @property
    def open(self) -> bool:
        return self._end.alive

    @property
    def ours(self) -> bool:
        """False in a fork of the reader's process."""
        return self._owner == os.getpid()


def _working_folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:  # somebody has removed it
        return os.path.sep


def _end_members(members: list[Member], selector: selectors.BaseSelector | None) -> dict[int, int]:
    by_pid: dict[int, int] = {}
    with contextlib.suppress(EOFError, OSError):  # a server that is gone has ended its ranks
        by_pid = members[0].server.end([m.pid for m in members]) if members else {}
    for member in members:
        if selector:
            for fileobj in (member.answers, member.output):
                with contextlib.suppress(KeyError, ValueError):
                    selector.unregister(fileobj)
        member.requests.close()
        member.answers.close()
        os.close(member.output)
        os.close(member.stack)
    return {m.rank: by_pid[m.pid] for m in members if m.pid in by_pid}


def _end(owner: int, members: list[Member], tapes: list[Files], files: tuple[int, ...], folder: str) -> None:
    """Leave nothing behind. A function of the module: a finalizer must not hold the crew it ends."""
    if owner != os.getpid():
        return  # a fork of the reader's process ends; the ranks are not its own
    _end_members(members, None)
    members.clear()
    for tape in tapes:
        tape.close()
    for file in files:
        os.close(file)
    shutil.rmtree(folder, ignore_errors=True)
