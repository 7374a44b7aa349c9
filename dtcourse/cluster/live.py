"""A run that is stepped: its ranks stand still before each step until somebody lets them go on."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

from dtcourse.cluster import record
from dtcourse.cluster.crew import Crew
from dtcourse.cluster.supervise import Outcome, Supervisor
from dtcourse.run import Run, open_player


class Live:
    """What `cluster.step` returns. The cluster can run nothing else until this run has ended.

    `step` is the last step that the ranks may take, 0 at first; `done` whether the run has ended; `error` what it
    ended with.
    """

    def __init__(
        self,
        crew: Crew,
        supervisor: Supervisor,
        set_gate: Callable[[int | None], None],
        settle: Callable[[Outcome], tuple[Run, BaseException | None]],
        give_up: Callable[[], None],
        function: str,
    ) -> None:
        self._function = function
        self.world_size = crew.world_size
        self.step = 0
        self.error: BaseException | None = None
        self._crew, self._supervisor, self._set_gate, self._settle = crew, supervisor, set_gate, settle
        self._give_up = give_up
        self._callbacks: list[Callable[[], None]] = []
        self._ended = threading.Event()
        self._run: Run | None = None
        self._seen = (0, 0)

    def start(self, busy: threading.Lock) -> None:
        """Supervise in a thread; `busy` is released at the end."""
        self._supervisor.on_look = self._look
        threading.Thread(target=self._supervise, args=(busy,), name="dtcourse live run", daemon=True).start()

    def _supervise(self, busy: threading.Lock) -> None:
        try:
            self._run, self.error = self._settle(self._supervisor.supervise())
            busy.release()
        except BaseException as error:  # somebody closed the cluster under our feet, say
            self.error = error
            self._run = Run(self.world_size, function=self._function, failure=f"{type(error).__name__}: {error}")
            self._give_up()
        finally:
            self._ended.set()
            self._tell()

    def _look(self) -> None:
        seen = self._supervisor.watch.operations, len(self._supervisor.watch.held())
        if seen != self._seen:
            self._seen = seen
            self._tell()

    def _tell(self) -> None:
        for callback in list(self._callbacks):
            with contextlib.suppress(Exception):
                callback()

    # -- for the reader -----------------------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        return self._ended.is_set()

    @property
    def run(self) -> Run:
        """The record so far; once the run has ended, all of it."""
        return self._run if self._run is not None else self._so_far()

    def advance(self) -> None:
        """Let the ranks take one more step; returns at once."""
        if not self.done:
            self.step += 1
            self._set_gate(self.step)

    def finish(self, timeout: float | None = None) -> Run:
        """Let the ranks go on to the end, and wait for it. Raises what the run raises."""
        if not self.done:
            self._set_gate(None)
        try:
            ended = self._ended.wait(timeout)
        except KeyboardInterrupt:
            self.stop()
            raise
        if not ended:
            raise TimeoutError(f"the run has not ended within {timeout} s")
        if self.error is not None:
            raise self.error
        return self.run

    def stop(self) -> None:
        """End the run where it is, and wait until the ranks are ready again."""
        self._supervisor.stop()
        self._ended.wait()

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call `callback()`, from another thread, when there are new events and when the run has ended."""
        self._callbacks.append(callback)

    def player(self) -> Any:
        """The chunk player; its step button lets the ranks take a step."""
        return open_player(self)

    def _so_far(self) -> Run:
        events, texts = record.read(self._crew.readers)
        return Run(self.world_size, function=self._function, events=events, sources=texts, backend=self._crew.backend)

    def __repr__(self) -> str:
        if self.done:
            return f"<live run, ended: {self.error or self.run!r}>"
        held = self._supervisor.watch.held()
        at = f"held before step {min(held.values())}: advance() or finish()" if held else "at work"
        return f"<live run on {self.world_size} ranks, {at}>"
