"""Clusters that the tests of data parallelism share: one of each backend and world, made when it is needed."""

import pytest

from dtcourse import Cluster


@pytest.fixture(scope="session")
def cluster_of():
    made = {}

    def cluster(world, backend="shared_memory"):
        if (world, backend) not in made:
            made[world, backend] = Cluster(world, backend=backend)
        return made[world, backend]

    yield cluster
    for one in made.values():
        one.close()
