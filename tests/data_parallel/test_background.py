"""The communication thread: in order, its exceptions come home, and nothing is left running."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from concurrent.futures import CancelledError

import pytest

from dtcourse.data_parallel.background import Background


def threads():
    return sum(thread.name == "communication" for thread in threading.enumerate())


@pytest.fixture
def background():
    one = Background()
    yield one
    one.close()
    assert not one._thread.is_alive()


def test_in_order_while_the_caller_goes_on(background):
    done, go = [], threading.Event()

    def task(number):
        go.wait()
        done.append(number)
        return 10 * number

    tasks = [background.submit(task, number) for number in range(20)]
    assert done == []
    go.set()
    assert [task.wait() for task in tasks] == [10 * number for number in range(20)]
    assert done == list(range(20))


def test_arguments_by_name(background):
    assert background.submit(lambda a, b: (a, b), 1, b=2).wait() == (1, 2)


def test_an_exception_comes_home_and_nothing_behind_it_begins(background):
    done, go = [], threading.Event()
    failing = background.submit(lambda: go.wait() and 1 / 0)
    behind = background.submit(done.append, 1)
    go.set()
    for task in (failing, behind):
        with pytest.raises(ZeroDivisionError):
            task.wait()
    with pytest.raises(ZeroDivisionError):
        background.submit(done.append, 2)
    assert done == []


def test_closed_it_takes_nothing_more(background):
    background.close()
    with pytest.raises(RuntimeError, match="has been closed"):
        background.submit(print)


def test_closed_it_does_not_begin_what_waits():
    background, go, done = Background(), threading.Event(), []
    under_way, waiting = background.submit(go.wait), background.submit(done.append, 1)
    time.sleep(0.01)
    threading.Timer(0.05, go.set).start()
    background.close()
    assert under_way.wait() and done == []
    with pytest.raises(CancelledError):
        waiting.wait()


def test_dropped_it_does_what_it_was_given_and_ends():
    before, done = threads(), []
    background = Background()
    background.submit(time.sleep, 0.02)
    background.submit(done.append, 1)
    del background
    gc.collect()
    end = time.monotonic() + 10
    while threads() > before and time.monotonic() < end:
        time.sleep(0.005)
    assert done == [1] and threads() == before


def test_a_task_that_hangs_is_left_to_itself():
    background, go = Background(), threading.Event()
    background.submit(go.wait)
    time.sleep(0.01)
    background.close()  # returns
    go.set()


def test_what_a_task_holds_goes_with_it(background):
    class Big:
        pass

    big = Big()
    seen = weakref.ref(big)
    background.submit(id, big).wait()
    del big
    background.submit(gc.collect).wait()
    assert seen() is None
