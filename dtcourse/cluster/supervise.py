"""Supervises one run: collects answers and prints, looks for deadlocks, and stops what cannot go on."""

from __future__ import annotations

import contextlib
import pickle
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from enum import Enum, auto

from dtcourse.backends import deaths
from dtcourse.cluster.crew import Crew, Member
from dtcourse.cluster.output import Output
from dtcourse.cluster.progress import Progress
from dtcourse.cluster.rank import Answer
from dtcourse.cluster.watch import Wait, Watch

LOOK_EVERY = 0.05  # seconds
GRACE = 1.0  # seconds for the others to finish by themselves when a rank has failed: they may be late with the same
STOP_GRACE = 1.0  # seconds that a rank has to react to the stop button


class Ending(Enum):
    """Why a run ended before all ranks had answered."""

    ANSWERED = auto()
    FAILED = auto()
    DIED = auto()
    DEADLOCK = auto()
    TIMEOUT = auto()
    STOPPED = auto()


@dataclass
class Outcome:
    """What the supervisor saw."""

    ending: Ending = Ending.ANSWERED
    answers: dict[int, Answer] = field(default_factory=dict)  # in the order in which they came
    dead: list[int] = field(default_factory=list)
    stuck: dict[int, Wait] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)
    seconds: float = 0.0


class Supervisor:
    """For one run. `running` are the ranks that have not answered; the death of one in `may_die` does not end it."""

    def __init__(self, crew: Crew, timeout: float | None, may_die: Collection[int] = ()) -> None:
        self._crew, self.timeout, self.may_die = crew, timeout, may_die
        self.watch = Watch(crew.readers, crew.gate)
        self.running: dict[int, Member] = {m.rank: m for m in crew.members}
        self.outcome = Outcome()
        self._output = Output(crew.world_size)
        self._stop = threading.Event()
        self._over = False
        self._half_read: Member | None = None  # whose answer is being read
        self._failed_at = 0.0
        self._time_held = 0.0  # seconds; a rank that is held at a step is not late
        self.on_look: Callable[[], None] = lambda: None

    def stop(self) -> None:
        """From another thread: end the run soon, as the stop button does."""
        self._stop.set()

    def supervise(self) -> Outcome:
        """Until all ranks have answered or the run is given up. KeyboardInterrupt is an ending, not an exception."""
        start = time.monotonic()
        with Progress(self._crew.world_size) as progress:
            try:
                self._loop(start, progress)
            except KeyboardInterrupt:
                self._interrupt()
        self.outcome.outputs = self._output.finish(self._crew.members)
        self.outcome.seconds = time.monotonic() - start
        return self.outcome

    def _loop(self, start: float, progress: Progress) -> None:
        next_look = start + LOOK_EVERY
        while self.running and not self._over:
            self._collect(max(0.0, next_look - time.monotonic()))
            now = time.monotonic()
            if now >= next_look:
                self._look(now, start)
                progress.show(now - start, self.watch)
                next_look = time.monotonic() + LOOK_EVERY

    def _collect(self, timeout: float) -> None:
        for key, _ in self._crew.selector.select(timeout):
            member, what = key.data
            if what == "output":
                if not self._output.read(member):
                    self._crew.selector.unregister(member.output)
            elif member.rank in self.running:
                self._answer(member)
            else:
                self._dies(member)

    def _answer(self, member: Member) -> None:
        self._half_read = member
        try:
            answer = Answer(*pickle.loads(member.answers.recv_bytes()))
        except (EOFError, ConnectionError):
            self._dies(member)
            return
        self._half_read = None
        self._take_in(member, answer)

    def _take_in(self, member: Member, answer: Answer) -> None:
        del self.running[member.rank]
        self.outcome.answers[member.rank] = answer
        if answer.failure and self.outcome.ending is Ending.ANSWERED:
            self.outcome.ending = Ending.FAILED
            self._failed_at = time.monotonic()
        if answer.failure and answer.failure.disagree:
            self._over = True  # the others are inside an operation that cannot end well

    def _dies(self, member: Member) -> None:
        self._half_read = None
        self.running.pop(member.rank, None)
        self._crew.selector.unregister(member.answers)
        self.outcome.dead.append(member.rank)
        if member.rank in self.may_die:
            self.watch.dead.add(member.rank)
            deaths.publish(self._crew.gate, member.rank, member.pid)
        else:
            self._end(Ending.DIED)

    def _look(self, now: float, start: float) -> None:
        self.watch.look()
        stuck = self.watch.certainly_stuck(gone=set(self.outcome.answers))
        self._time_held += LOOK_EVERY if self.watch.held() else 0.0
        self.on_look()
        if self._stop.is_set():
            raise KeyboardInterrupt
        if self.outcome.ending is Ending.FAILED:
            self._over = now - self._failed_at > GRACE or len(stuck) == len(self.running)
        elif stuck:
            self.outcome.stuck = stuck
            self._end(Ending.DEADLOCK)
        elif self.timeout is not None and now - start - self._time_held > self.timeout:
            self._end(Ending.TIMEOUT)

    def _end(self, ending: Ending) -> None:
        self.outcome.ending, self._over = ending, True

    def _interrupt(self) -> None:
        self.outcome.ending = Ending.STOPPED
        with contextlib.suppress(KeyboardInterrupt):  # pressed again: no more patience
            for member in self.running.values():
                self._crew.interrupt(member)
            if self._half_read:  # what is left of its answer makes no sense: the rank will be replaced
                self._crew.selector.unregister(self._half_read.answers)
            end = time.monotonic() + STOP_GRACE
            while self.running and time.monotonic() < end:
                self._collect(0.05)
