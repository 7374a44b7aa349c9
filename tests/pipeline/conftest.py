"""Clusters for the tests of pipelines on real ranks: each is started when it is first asked for, and kept."""

from contextlib import ExitStack
from functools import cache

import pytest

from dtcourse import Cluster


@pytest.fixture(scope="session")
def cluster():
    """`cluster(world)` is a cluster of that many ranks; `cluster(world, "gloo")` another."""
    with ExitStack() as stack:
        made = cache(lambda *how: stack.enter_context(Cluster(how[0], backend=how[1], strict=how[2])))
        yield lambda world, backend="auto", strict=False: made(world, backend, strict)
