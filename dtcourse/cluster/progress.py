"""A line of progress for runs that take longer than a moment."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from dtcourse.cluster import sources
from dtcourse.cluster.watch import Watch

SHOWN_AFTER = 2.0  # seconds


class Progress:
    """Shows how long the ranks have worked, how many operations they have done, and who waits. Then vanishes."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._bar: Any = None

    def show(self, seconds: float, watch: Watch) -> None:
        if seconds < SHOWN_AFTER:
            return
        if self._bar is None:
            from tqdm.auto import tqdm

            hidden = False if sources.in_notebook() else None  # None: hidden unless in a terminal
            self._bar = tqdm(bar_format="{desc} [{elapsed}]", leave=False, disable=hidden)
        waits = {rank: wait.needs for rank, wait in watch.waits().items()}
        waiting = ", ".join(f"rank {rank} waits for {'/'.join(map(str, needs))}" for rank, needs in waits.items())
        self._bar.set_description_str(
            f"{self._world_size} ranks at work, {watch.operations:,} operations" + (f"; {waiting}" if waiting else "")
        )

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.bar_format = "{desc}"
            self._bar.set_description_str("")  # a notebook keeps the last text
            self._bar.close()
