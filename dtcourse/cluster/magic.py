"""`%%ranks`: a notebook cell that runs on every rank, in a namespace that each rank keeps between cells.

    %%ranks            on the latest cluster
    %%ranks cluster    on the one called `cluster`

`torch`, `dist`, `rank` and `world_size` are there from the start. The namespace is lost when a rank restarts.
"""

from __future__ import annotations

import ast
import itertools
from typing import Any

from dtcourse.cluster.cluster import Cluster
from dtcourse.cluster.rank import Order
from dtcourse.run import Run

_namespace: dict[str, Any] = {}  # of this process, when it is a rank
_numbers = itertools.count(1)


def run_cell(source: str, filename: str) -> Any:
    """In a rank: run a cell; the value of its last line, if that is an expression, is printed."""
    if not _namespace:
        import torch
        import torch.distributed as dist

        _namespace.update(torch=torch, dist=dist, rank=dist.get_rank(), world_size=dist.get_world_size())
        _namespace["__name__"] = "__main__"
    tree = ast.parse(source, filename)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, filename, "exec"), _namespace)
    if last is not None:
        value = eval(compile(ast.Expression(last.value), filename, "eval"), _namespace)  # type: ignore[attr-defined]
        if value is not None:
            print(repr(value))


def ranks(line: str, cell: str) -> None:
    """The magic itself, in the reader's process. The record is `cluster.last_run`."""
    from IPython import get_ipython

    name = line.strip()
    cluster = get_ipython().user_ns.get(name) if name else latest()
    if not isinstance(cluster, Cluster):
        raise ValueError(f"%%ranks needs a Cluster: {name or 'there is none yet'}. Make one: cluster = Cluster(4)")
    run_on(cluster, cell)


def latest() -> Cluster | None:
    """The cluster that was made last, if it is still there."""
    return Cluster._latest() if Cluster._latest else None


def run_on(cluster: Cluster, cell: str) -> Run:
    """Run the text of a cell on every rank of `cluster`."""
    import linecache

    filename = f"ranks cell {next(_numbers)}"
    linecache.cache[filename] = (len(cell), None, cell.splitlines(True), filename)
    cluster._namespace_used = True
    return cluster._run(run_cell, (cell, filename), {}, Order.KEEP_GROUPS)


def load_ipython_extension(ipython: Any) -> None:
    """Make `%%ranks` known to a notebook."""
    ipython.register_magic_function(ranks, "cell", "ranks")
