"""Ranks of this machine: `Cluster` starts them, runs functions on them and returns a `Run`."""

from dtcourse.cluster.forkserver import ForkServer

ForkServer.start_early()  # it loads torch while this process does

from dtcourse.cluster.cluster import Cluster  # noqa: E402
from dtcourse.cluster.live import Live  # noqa: E402
from dtcourse.cluster.shipping import per_rank  # noqa: E402

__all__ = ["Cluster", "Live", "per_rank"]
