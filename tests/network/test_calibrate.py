"""A calibrated link is the one that was emulated; without one it is the machine's own, and finite."""

import math
from types import SimpleNamespace

import pytest

from dtcourse import Cluster, Link
from dtcourse.network.calibrate import calibrate


@pytest.mark.parametrize("backend", ["shared_memory", "gloo"])
def test_it_gives_an_emulated_link_back(backend):
    """Never much faster than it is; and a busy machine is slower, so the best of some tries counts."""
    link, best = Link("20 MB/s", "4 ms"), None
    with Cluster(3, backend=backend, link=link) as cluster:
        for _ in range(5):
            found = calibrate(cluster)
            assert found.latency >= 0.9 * link.latency
            if abs(found.bandwidth / link.bandwidth - 1) < 0.05 and found.latency < 1.15 * link.latency:
                return
            best = found
    raise AssertionError(f"{best}, and not {link}")


def test_without_a_link_it_is_something_finite():
    with Cluster(2) as cluster:
        found = calibrate(cluster)
    assert 0 < found.bandwidth < 1e12 and 0 <= found.latency < 1
    assert math.isfinite(found.seconds(1 << 20))


class Disturbed:
    """Gives what the ranks of a machine may have measured that was held up in the middle."""

    world_size = 2

    def __init__(self, *seconds):
        self.seconds = iter(seconds)

    def run(self, _, size):
        return SimpleNamespace(results=[next(self.seconds)])


def test_a_disturbed_machine_has_a_link_all_the_same():
    """By the long message the few bytes of the short one would take longer than it did; or it was the faster one."""
    assert calibrate(Disturbed(15e-6, 6e-3)).latency == 0
    assert calibrate(Disturbed(15e-6, 4e-3, 10e-6, *[1e-6] * 20)).bandwidth > 0


def test_one_rank_alone_has_no_link():
    with Cluster(1) as cluster, pytest.raises(ValueError, match="calibrate needs two ranks"):
        calibrate(cluster)
