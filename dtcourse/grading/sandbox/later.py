"""`Later`: what is to be done at a time that has not come yet; of two things at one time, what was asked for first."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from dtcourse.backends.recording import now


class Later:
    """Nobody waits here: whoever has this object asks in between what is due."""

    def __init__(self) -> None:
        self._waiting: list[tuple[float, int, Callable[[], None]]] = []
        self._asked = 0

    def at(self, seconds: float, do: Callable[[], None]) -> None:
        """Have it done in so many seconds."""
        self._asked += 1
        heapq.heappush(self._waiting, (now() / 1e9 + seconds, self._asked, do))

    def wait(self, most: float) -> float:
        """Seconds until the next thing is due, 0 if it is overdue; `most`, if that is sooner."""
        return max(0.0, min(most, self._waiting[0][0] - now() / 1e9)) if self._waiting else most

    def due(self) -> Callable[[], None] | None:
        """The next thing whose time has come."""
        return heapq.heappop(self._waiting)[2] if self._waiting and self._waiting[0][0] <= now() / 1e9 else None
