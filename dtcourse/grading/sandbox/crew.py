"""The jailed ranks of one submission, as the grader sees them: their sockets, what they print, and their tapes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import select
import selectors
import socket
from collections.abc import Iterator

from dtcourse.backends.tape import Files, Reader
from dtcourse.grading.sandbox.jail import libraries
from dtcourse.grading.sandbox.keeper import Keeper
from dtcourse.grading.sandbox.scribe import Scribe
from dtcourse.grading.sandbox.wire import Frame, Unpacker

_AT_ONCE = 1 << 18  # bytes
_STACK = 1 << 16  # bytes
_NO_GROWING = 0x0002 | 0x0004  # seals: it neither shrinks nor grows
_ADD_SEALS = 1033
_MOST_FILES = 1000


class JailedRank:
    """One rank, which sees the submission's `folder` as `seen`. `course`: modules of the course that it has."""

    def __init__(self, rank: int, keeper: Keeper, folder: str, seen: str) -> None:
        self.rank, self._folder, self._seen = rank, folder, seen
        self.course: dict[str, str] = {}
        self._outside: dict[str, str | None] = {}
        self.files = Files.create()
        self.scribe, self.reader = Scribe(rank, self.files), Reader(self.files)
        self._unpacker, self._outgoing = Unpacker(), bytearray()
        self._selector: selectors.BaseSelector | None = None
        self.sock, theirs = socket.socketpair()
        self.output, their_output = os.pipe()
        self._stack = _stack_file()
        for descriptor in (self.sock.fileno(), self.output):
            os.set_blocking(descriptor, False)
        try:
            self.pid, self.end = keeper.fork(rank, folder, [theirs.fileno(), their_output, self._stack])
        finally:
            theirs.close()
            os.close(their_output)

    def join(self, selector: selectors.BaseSelector) -> None:
        """A run with this rank begins: what it says is heard."""
        self._selector = selector
        selector.register(self.sock, selectors.EVENT_READ, (self, "frames"))
        selector.register(self.output, selectors.EVENT_READ, (self, "output"))
        if self.end >= 0:
            selector.register(self.end, selectors.EVENT_READ, (self, "end"))

    def leave(self) -> None:
        """The run is over."""
        for heard in (self.sock, self.output, self.end) if self._selector else ():
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(heard)
        self._selector = None

    def receive(self) -> Iterator[Frame]:
        """What it has sent. Raises EOFError if it has hung up, and Malformed."""
        try:
            received = self.sock.recv(_AT_ONCE)
        except BlockingIOError:
            return
        except ConnectionError:
            received = b""
        if not received:
            raise EOFError
        yield from self._unpacker.feed(received)

    @property
    def untaken(self) -> int:
        """Bytes that it has been sent and does not take."""
        return len(self._outgoing)

    def send(self, frame: bytes) -> None:
        """Never blocks: what it does not take now waits here."""
        self._outgoing += frame
        self.flush()

    def flush(self) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionError):
            while self._outgoing:
                del self._outgoing[: self.sock.send(self._outgoing)]
        if self._selector:
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._outgoing else 0)
            self._selector.modify(self.sock, wanted, (self, "frames"))

    def gone(self, seconds: float) -> bool:
        """Whether all that was in its jail has ended; waits a while for it."""
        return self.end >= 0 and bool(select.select([self.end], [], [], seconds)[0])

    def outside(self, file: str) -> str | None:
        """A file of the submission, or of a library, as it is called outside of the jail; None for any other."""
        if file not in self._outside:
            self._outside[file] = self._find_outside(file) if len(self._outside) < _MOST_FILES else None
        return self._outside[file]

    def _find_outside(self, file: str) -> str | None:
        file = os.path.normpath(file)
        if file.startswith(self._seen + os.sep):
            there = os.path.realpath(os.path.join(self._folder, os.path.relpath(file, self._seen)))
            return there if there.startswith(os.path.realpath(self._folder) + os.sep) else None
        return file if file.startswith(tuple(f"{path}/" for path in libraries())) else None

    def stack_as_text(self) -> str:
        """Where it was when time was nearly up: the lines of faulthandler, those of files that may be shown."""
        said = os.pread(self._stack, _STACK, 0).decode(errors="replace")
        lines = re.findall(r'File "(.+?)"(, line \d+ in .+)', said)
        return "\n".join(f'File "{there}"{rest}' for file, rest in lines if (there := self.outside(file)))

    def close(self) -> None:
        self.leave()
        self.sock.close()
        for descriptor in (self.output, self._stack, self.end):
            if descriptor >= 0:
                os.close(descriptor)
        self.files.close()


class JailedCrew:
    """The ranks of a submission. `gather` those for a run; they are kept for the next, until somebody ends them."""

    gate = -1  # nobody is held, and nobody may die
    members: list[JailedRank]

    def __init__(self, keeper: Keeper, folder: str) -> None:
        self._keeper, self._folder, self.seen = keeper, folder, keeper.show(folder)
        self._ranks: list[JailedRank] = []
        self._ended: list[JailedRank] = []  # whose tapes may still be read
        self.members = []
        self.selector = selectors.DefaultSelector()

    def gather(self, world: int) -> None:
        """`members` are `world` ranks that are ready to begin a run. Raises OSError if they cannot be started."""
        if any(member.gone(0) for member in self._ranks):
            self.end()
        for rank in range(len(self._ranks), world):
            self._ranks.append(JailedRank(rank, self._keeper, self._folder, self.seen))
        self.members = self._ranks[:world]
        for member in self.members:
            member.scribe.rewind()
            member.join(self.selector)

    def rest(self) -> None:
        """The run is over, and the ranks are kept."""
        for member in self.members:
            member.leave()

    @property
    def world_size(self) -> int:
        return len(self.members)

    @property
    def readers(self) -> list[Reader]:
        return [member.reader for member in self.members]

    def end(self) -> dict[int, int]:
        """End all ranks, with all that they have started; how each ended (a wait status), by rank."""
        statuses: dict[int, int] = {}
        with contextlib.suppress(EOFError, OSError):  # a keeper that is gone has ended its jails
            statuses = self._keeper.end([member.pid for member in self._ranks]) if self._ranks else {}
        found = {member.rank: statuses[member.pid] for member in self._ranks if member.pid in statuses}
        for member in self._ranks:
            member.leave()
        self._ended += self._ranks
        self._ranks = []
        return found

    def discard(self) -> None:
        """Close what ranks that have ended have left: nobody reads their tapes any more."""
        for member in self._ended:
            member.close()
        self._ended.clear()

    def close(self) -> None:
        """End all ranks, and leave nothing of the submission behind."""
        self.end()
        self.discard()
        with contextlib.suppress(EOFError, OSError):
            self._keeper.hide(self.seen)

    def interrupt(self, member: JailedRank) -> None:
        """There is no stop button in a jail: the ranks are ended."""


def _stack_file() -> int:
    """A file of a fixed size: nobody can fill the memory with it."""
    if not hasattr(os, "memfd_create"):
        raise OSError("there are no files in memory on this machine")
    file = os.memfd_create("stack", os.MFD_ALLOW_SEALING)
    os.ftruncate(file, _STACK)
    fcntl.fcntl(file, _ADD_SEALS, _NO_GROWING)
    return file
