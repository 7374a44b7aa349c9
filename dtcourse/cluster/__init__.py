"""Ranks of this machine: `Cluster` starts them, runs functions on them and returns a `Run`."""

from dtcourse.cluster.cluster import Cluster
from dtcourse.cluster.live import Live
from dtcourse.cluster.shipping import per_rank

__all__ = ["Cluster", "Live", "per_rank"]
