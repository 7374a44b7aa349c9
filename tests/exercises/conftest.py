"""Which implementation the tests of the exercises run: `--impl exercises`, `--impl solutions`, a folder, or a file."""

from pathlib import Path

import pytest

from dtcourse.grading.submission import Clusters, Submission

ROOT = Path(__file__).parent.parent.parent


def pytest_addoption(parser):
    text = "what to test: exercises, solutions (the default), a folder with the files of the exercises, or one file"
    parser.addoption("--impl", default="solutions", metavar="DIR", help=text)


def pytest_configure(config):
    config.addinivalue_line("markers", "points(n): what passing this test of an exercise is worth")
    config.addinivalue_line("markers", "hidden: the student edition does not have this test of an exercise")


@pytest.fixture(scope="session")
def clusters():
    with Clusters() as clusters:
        yield clusters


@pytest.fixture(scope="module")
def submission(request, clusters):
    """What the tests of an exercise run: test_ring.py tests ring.py."""
    # without the option if pytest was not started on this folder: pytest had not read this file then
    chosen = ROOT / request.config.getoption("--impl", default="solutions")
    if chosen.suffix == ".py":
        return Submission(chosen, clusters)
    return Submission(chosen / (request.module.__name__.removeprefix("test_") + ".py"), clusters)
