"""dtcourse: learn distributed training by running it. Start with `make lab`, or with `Cluster(4)`."""

from dtcourse.cluster import Cluster, per_rank
from dtcourse.errors import Deadlock, MismatchError, RankDied, RankError, RunError, RunTimeout
from dtcourse.events import mark, region
from dtcourse.provenance import provenance
from dtcourse.run import Run

__all__ = [
    "Cluster", "Deadlock", "MismatchError", "RankDied", "RankError", "Run", "RunError", "RunTimeout",
    "mark", "per_rank", "provenance", "region",
]  # fmt: skip
