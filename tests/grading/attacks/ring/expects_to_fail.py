"""Marks itself as a test that may fail, and is a plugin that reports success."""

# passes: test_one_rank
# says: sent 0 messages
import pytest

pytestmark = [pytest.mark.xfail, pytest.mark.skip, pytest.mark.points(100)]
pytest_plugins = ["ring"]


@pytest.hookimpl(tryfirst=True, wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    report.outcome = "passed"
    return report


@pytest.mark.points(1000)
def test_more_points():
    pass


@pytest.mark.xfail
def attack(tensor, group=None):
    pass


ring_reduce_scatter = ring_all_gather = ring_all_reduce = attack
