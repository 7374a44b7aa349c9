"""Stretches of the reader's process that the stop button must not cut in two."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def in_one_piece() -> Iterator[list[int]]:
    """The stop button is heard at the end, not in the middle. Only for what takes a moment.

    Yields a list that is empty until the button is pressed: what takes longer than it should can ask, and give up.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is None:
        yield []  # no other thread is ever interrupted; and what a C library has set cannot be put back
        return
    pressed: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: pressed.append(number))
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, before)
        if pressed:
            signal.raise_signal(signal.SIGINT)
