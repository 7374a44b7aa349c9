"""Ranks ready and a lambda there and back, against ipyparallel."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

from benchmarks.table import Row, alternate

_OURS = """
import time; start = time.perf_counter()
from dtcourse import Cluster
with Cluster(4) as c:
    c.run(lambda: __import__("torch"))
    print(time.perf_counter() - start)
"""

_THEIRS = """
import time; start = time.perf_counter()
import ipyparallel
with ipyparallel.Cluster(n=4, log_level=40) as c:
    c[:].apply_sync(lambda: __import__("torch").__name__)
    print(time.perf_counter() - start)
"""


def rows() -> Iterator[Row]:
    """Starts new interpreters, as a reader does."""
    ours, theirs = min(_seconds(_OURS) for _ in range(2)), min(_seconds(_THEIRS) for _ in range(2))
    yield Row("4 ranks ready, torch imported", "s", ours, 0.25, theirs, "ipyparallel")
    yield _there_and_back()


def _seconds(script: str) -> float:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=300)
    return float(done.stdout.split()[-1])


def _there_and_back() -> Row:
    import ipyparallel

    from dtcourse import Cluster

    with Cluster(4) as cluster, ipyparallel.Cluster(n=4, log_level=40) as peer:
        view = peer[:]
        view.block = True

        def fifty(once: Callable[[], object]) -> Callable[[], object]:
            return lambda: [once() for _ in range(50)]

        ours, theirs = alternate(
            fifty(lambda: cluster.run(lambda: 1)), fifty(lambda: view.apply_sync(lambda: 1)), rounds=9
        )
    return Row("a lambda on 4 ranks and back", "ms", ours * 20, 0.05, theirs * 20, "ipyparallel")
