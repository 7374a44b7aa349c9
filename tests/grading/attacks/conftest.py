"""The tests of the exercises are imported here, too: their marks are known."""


def pytest_configure(config):
    for mark in ("points(n): what passing this test of an exercise is worth", "hidden: not in the student edition"):
        config.addinivalue_line("markers", mark)
