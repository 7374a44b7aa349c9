"""Clusters for the tests of model parallelism: each size is started when it is first asked for, and kept."""

from contextlib import ExitStack

import pytest

from dtcourse import Cluster


@pytest.fixture(scope="session")
def cluster():
    """`cluster(world)` is a cluster of that many ranks."""
    made = {}
    with ExitStack() as stack:
        yield lambda world: made.get(world) or made.setdefault(world, stack.enter_context(Cluster(world)))
