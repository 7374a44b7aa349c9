"""What can go wrong in a run, named. Each error says which rank, on which line of the reader, and what to try."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dtcourse.run import Run


class RunError(Exception):
    """A run did not complete. `run` is the record up to that point: `error.run.timeline()` draws it."""

    def __init__(self, message: str, run: Run | None = None) -> None:
        super().__init__(message)
        self.run = run

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows: the message, without the frames of dtcourse that led to it."""
        return [f"{type(self).__name__}: {self}"]


class RankError(RunError):
    """A rank raised an exception, or returned what cannot be sent back. `rank` says which."""

    def __init__(self, message: str, run: Run | None = None, rank: int = 0) -> None:
        super().__init__(message, run)
        self.rank = rank


class Deadlock(RunError):
    """Ranks wait for each other, or for ranks that have returned, and can never go on.

    `waits` lists (rank, what it waits in, the ranks it waits for); `returned` the ranks that had returned.
    """

    def __init__(
        self,
        message: str,
        run: Run | None = None,
        waits: list[tuple[int, str, tuple[int, ...]]] | None = None,
        returned: frozenset[int] = frozenset(),
    ) -> None:
        super().__init__(message, run)
        self.waits = waits or []
        self.returned = returned


class MismatchError(RunError):
    """Two ranks disagree on what they do together: kind of operation, shape, dtype, root, or size of a message."""


class RankDied(RunError, ConnectionError):
    """The process of a rank ended in the middle of a run. `rank` says which.

    In a run with `may_die`, the other ranks raise it on the line that needs the dead one, and may catch it there.
    """

    def __init__(self, message: str, run: Run | None = None, rank: int = 0) -> None:
        super().__init__(message, run)
        self.rank = rank


class RunStopped(RunError, KeyboardInterrupt):
    """Somebody pressed the stop button, or Ctrl-C, or called `stop()` on a run that is stepped."""


class RunTimeout(RunError, TimeoutError):
    """The run took longer than the cluster's `timeout`."""
