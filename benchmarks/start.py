"""Ranks ready and a lambda there and back, against ipyparallel."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

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
        for _ in range(20):
            view.apply_sync(lambda: 1)
            cluster.run(lambda: 1)
        ours, theirs = alternate(lambda: cluster.run(lambda: 1), lambda: view.apply_sync(lambda: 1), rounds=200)
        time.sleep(0.1)
    return Row("a lambda on 4 ranks and back", "ms", ours * 1e3, 0.05, theirs * 1e3, "ipyparallel")
