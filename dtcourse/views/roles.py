"""Who serves and who works, where the marks of a parameter server tell. Knows only a `Run`."""

from __future__ import annotations

from dtcourse.run import Run

SERVER, WORKER = "server", "worker"


def roles(run: Run) -> dict[int, str]:
    """Rank -> "server" or "worker". Empty where no rank marked an update with its worker.

    A server marks `update` with the worker whose gradient it applied.
    """
    updates = [e for e in run.marks("update") if "worker" in e.labels]
    workers = {e.labels["worker"] for e in updates} | ({e.rank for e in run.marks("loss")} if updates else set())
    servers = {e.rank for e in updates}
    return dict.fromkeys(sorted(workers - servers), WORKER) | dict.fromkeys(sorted(servers), SERVER)
