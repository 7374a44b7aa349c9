"""How fast the chunk player answers: from a key to the painted change, in headless Chromium."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.table import Row

_TESTS = Path(__file__).parents[1] / "tests"


def rows() -> Iterator[Row]:
    sys.path[:0] = [str(_TESTS / "browser"), str(_TESTS / "views")]
    import chromium

    yield Row("a player step, from key to paint, 4 ranks", "ms", chromium.measure(4), 25)
