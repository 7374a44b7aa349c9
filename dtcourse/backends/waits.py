"""Whether a rank waits for others: it does when all of its threads wait or sleep, and none can do what others wait for.

Each thread says when it begins to wait in an operation, and the recording when the operation is complete. As long as
some thread is at work, a wait is an aside (`Column.ASIDE`), and nobody takes the rank for stuck. A thread that looks
once in a while, as long as there are asides, finds out when that changes: a communication thread waits for another
rank, say, and the main thread for the communication thread.
"""

from __future__ import annotations

import sys
import threading
from concurrent.futures.thread import _worker as _pool_worker
from threading import RLock
from types import FrameType

from dtcourse.backends.shared_memory import WORKER
from dtcourse.backends.tape import Column, Writer

LOOKS = "looks at waits"  # the name of the thread
LOOK_EVERY = 0.05  # seconds
_MAIN_THREAD = threading.main_thread().ident
_JOINS = {  # where one thread waits for the end of another: the second until Python 3.12
    getattr(threading.Thread, name).__code__
    for name in ("join", "_wait_for_tstate_lock")
    if hasattr(threading.Thread, name)
}


class Waits:
    """Of one rank. `lock` is the one of its recording."""

    def __init__(self, tape: Writer, lock: RLock) -> None:
        self._tape, self._lock = tape, lock
        self._looking = False
        self._empty = threading.Event()
        self.rewind()

    def rewind(self) -> None:
        """Begin a run."""
        self._threads: dict[int, int] = {}  # number of an operation -> the thread that waits in it
        self._still = False  # no thread is at work, and no wait an aside

    def begin(self, number: int) -> None:
        """This thread waits in the operation."""
        with self._lock:
            self._threads[number] = threading.get_ident()
            if threading.get_ident() != _MAIN_THREAD or not all_sleep(besides={_MAIN_THREAD}):
                self._tape.fill(number, Column.ASIDE, 1)
                self._look_from_now_on()

    def end(self, number: int) -> None:
        """The operation is complete: the thread that waited in it, if one did, goes on."""
        with self._lock:
            if self._threads.pop(number, None) is None:
                return
            if self._still:
                self._set_aside(1)
            if not self._threads:
                self._empty.set()

    def _look_from_now_on(self) -> None:
        self._empty.clear()
        if not self._looking:
            self._looking = True
            threading.Thread(target=self._look, name=LOOKS, daemon=True).start()

    def _look(self) -> None:
        before: dict[int, int] = {}
        while True:
            self._empty.wait(LOOK_EVERY)
            with self._lock:
                if not self._threads:
                    self._looking = False
                    return
                if self._threads == before and all_sleep(besides=set(before.values())):
                    self._set_aside(0)
                before = dict(self._threads)

    def _set_aside(self, value: int) -> None:
        self._still = not value
        for number in self._threads:
            self._tape.fill(number, Column.ASIDE, value)


def all_sleep(besides: set[int | None]) -> bool:
    """Whether no thread of the reader's but those is at work."""
    if threading.active_count() == 1:
        return True
    frames = sys._current_frames()  # of all threads at one moment
    del frames[threading.get_ident()]  # this one would hold itself, and the frames of all others with all they hold
    others = (thread for thread in threading.enumerate() if thread.ident not in besides)
    return all(_is_bystander(thread) or _sleeps(frames.get(thread.ident)) for thread in others)


def _sleeps(frame: FrameType | None) -> bool:
    """Whether a thread waits without a limit, and no other has woken it.

    So it is in Queue.get, Event.wait and Future.result, in a pool's worker that has nothing to do, and in Thread.join.
    """
    if frame is None:
        return False
    if frame.f_code in _JOINS:
        return frame.f_locals["timeout"] in (None, -1) and frame.f_locals["self"] in threading.enumerate()
    if frame.f_code is _pool_worker.__code__:
        return frame.f_locals["work_queue"].empty()
    if frame.f_code is not threading.Condition.wait.__code__:
        return False
    waits = frame.f_locals
    return waits["timeout"] is None and waits.get("waiter") in waits["self"]._waiters  # whoever wakes it takes it out


def _is_bystander(thread: threading.Thread) -> bool:
    return (
        thread.name in (WORKER, LOOKS)
        or isinstance(thread, threading._DummyThread)  # of a library
        or type(thread).__module__.startswith("tqdm")
    )
