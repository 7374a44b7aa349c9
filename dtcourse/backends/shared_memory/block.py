"""The block: words that all ranks of a group share, and bells with which they wake each other.

A word of a rank's part is written by that rank alone, so it needs no lock; but for its bell, which anybody may ring,
and for its mailbox, which has a lock. Whoever waits for a word to change looks a few times, lets others run, and then
sleeps until its bell rings.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import platform
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch.distributed import Store

from dtcourse.backends.fence import fence

HEAD = 8  # words at the start of each rank's part
BELL, SLEEPS, PUBLISHED, REDUCED, FINISHED, BUFFERS, GAVE_UP = range(7)
ANYBODY = -1  # SLEEPS: 0 for a rank that is awake, 1 + r for one that waits for rank r
MAX_BUFFERS = 1024
BOARD = HEAD + 2 * MAX_BUFFERS  # words: the head, then address and bytes of each published buffer
SLOTS = 8192
SLOT = 8  # words of a message in a mailbox
MAILBOX = 8 + SLOTS * SLOT
PART = BOARD + MAILBOX

_LOOKS = 3  # before it sleeps, a rank lets others run this often: two cores may have to do for eight ranks
_NAP = 0.02  # seconds: the longest sleep, in case a ring was missed
_FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine()) if sys.platform == "linux" else None
_WAIT, _WAKE = 0, 1


class Block:
    """The shared words of the `size` ranks of a group, made known to each other through `store`."""

    def __init__(self, store: Store, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._file = _shared_file(store, rank, size, PART * 8 * size)
        self._memory = mmap.mmap(self._file, PART * 8 * size)
        self.words = memoryview(self._memory).cast("q")
        self._first = ctypes.c_char.from_buffer(self._memory)
        self._start = ctypes.addressof(self._first)
        self._locks = [threading.Lock() for _ in range(size)]
        self._sleepers = 0  # threads of this rank
        self._sleeping = threading.Lock()

    def close(self) -> None:
        """Give memory and file back."""
        self.words.release()
        del self._first
        self._memory.close()
        os.close(self._file)

    def get(self, rank: int, word: int) -> int:
        """A word of any rank; what that rank wrote before it can be read after it."""
        value = self.words[rank * PART + word]
        fence()
        return value

    def set(self, word: int, value: int) -> None:
        """Write one of this rank's own words, after all that was written before."""
        fence()
        self.words[self.rank * PART + word] = value

    @contextmanager
    def mailbox(self, owner: int) -> Iterator[None]:
        """One rank at a time may change who waits in the mailbox of `owner`. The kernel opens it if the rank dies."""
        with self._locks[owner]:
            fcntl.lockf(self._file, fcntl.LOCK_EX, 1, owner)
            try:
                yield
            finally:
                fcntl.lockf(self._file, fcntl.LOCK_UN, 1, owner)

    def ring(self, rank: int) -> None:
        """Wake `rank` to look again, if it sleeps until this rank, or anybody, has done something."""
        at = rank * PART
        self.words[at + BELL] = time.perf_counter_ns()  # never the same number twice
        fence()  # who goes to sleep says so and then looks at the bell: one of the two has to see the other
        if self.words[at + SLEEPS] in (ANYBODY, self.rank + 1) and _FUTEX:
            _syscall(_FUTEX, ctypes.c_void_p(self._start + 8 * (at + BELL)), _WAKE, 1 << 30, None, None, 0)

    def ring_all(self) -> None:
        for rank in range(self.size):
            if rank != self.rank:
                self.ring(rank)

    def wait(self, done: Callable[[], bool], timeout: float, rank: int | None = None) -> None:
        """Until `done()`, which only `rank` can bring about, if one is named. Raises TimeoutError after `timeout` s."""
        for _ in range(_LOOKS):
            if done():
                return
            os.sched_yield()
        end = time.monotonic() + timeout
        bell = self.rank * PART + BELL
        self._goes_to_sleep(+1, rank)
        try:
            while True:
                heard = self.words[bell]
                fence()
                if done():
                    return
                if time.monotonic() > end:
                    raise TimeoutError(f"nothing came within {timeout:g} s")
                self._sleep(bell, heard)
        finally:
            self._goes_to_sleep(-1, rank)

    def _goes_to_sleep(self, more: int, rank: int | None) -> None:
        """Two threads may: the main one waits for a message while the worker waits in a collective."""
        with self._sleeping:
            self._sleepers += more
            alone = self._sleepers == 1 and more == 1 and rank is not None
            waits_for = rank + 1 if alone else ANYBODY
            self.words[self.rank * PART + SLEEPS] = waits_for if self._sleepers else 0
        fence()

    def _sleep(self, word: int, value: int) -> None:
        if _FUTEX:
            _syscall(
                _FUTEX,
                ctypes.c_void_p(self._start + 8 * word),
                _WAIT,
                value & 0xFFFFFFFF,
                ctypes.byref(_NAP_SPEC),
                None,
                0,
            )
        else:
            time.sleep(0.0005)


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


_NAP_SPEC = _Timespec(0, int(_NAP * 1e9))
_syscall = ctypes.CDLL(None).syscall
_syscall.argtypes = [
    ctypes.c_long,
    ctypes.c_void_p,
    ctypes.c_int,
    ctypes.c_uint32,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_int,
]


def _shared_file(store: Store, rank: int, size: int, length: int) -> int:
    """A file that all ranks have open and nobody else can find."""
    if rank == 0:
        folder = tempfile.mkdtemp(prefix="dtcourse-block-", dir=os.environ.get("DTCOURSE_FOLDER"))
        path = os.path.join(folder, "block")
        file = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        os.ftruncate(file, length)
        store.set("block", path)
    else:
        path = store.get("block").decode()
        file = os.open(path, os.O_RDWR)
    if store.add("opened", 1) == size:
        store.set("all opened", b"1")
    if rank == 0:
        store.wait(["all opened"])
        with contextlib.suppress(OSError):
            shutil.rmtree(os.path.dirname(path))
    return file
