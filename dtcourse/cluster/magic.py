"""`%%ranks`: a notebook cell that runs on every rank, in a namespace that each rank keeps between cells.

    %%ranks            on the latest cluster
    %%ranks cluster    on the one called `cluster`

`torch`, `dist`, `rank` and `world_size` are there from the start. The namespace is lost when a rank restarts.
"""

from __future__ import annotations

from typing import Any

from dtcourse.cluster.cluster import Cluster


def ranks(line: str, cell: str) -> None:
    """The magic itself, in the reader's process. The record is `cluster.last_run`."""
    from IPython import get_ipython

    name = line.strip()
    cluster = get_ipython().user_ns.get(name) if name else Cluster.latest()
    if not isinstance(cluster, Cluster):
        raise ValueError(f"%%ranks needs a Cluster: {name or 'there is none yet'}. Make one: cluster = Cluster(4)")
    cluster.run_cell(cell)


def load_ipython_extension(ipython: Any) -> None:
    """Make `%%ranks` known to a notebook."""
    ipython.register_magic_function(ranks, "cell", "ranks")
