"""What the relay holds back is done when its time has come, no sooner, and in order."""

import time

from dtcourse.grading.sandbox.later import Later


def test_nothing_is_due_before_its_time():
    later = Later()
    assert later.due() is None and later.wait(7.0) == 7.0
    later.at(60, lambda: None)
    assert later.due() is None and 59 < later.wait(100.0) <= 60 and later.wait(7.0) == 7.0


def test_what_is_due_comes_by_its_time_and_then_as_it_was_asked_for():
    later, done = Later(), []
    for name, seconds in [("third", 0.002), ("first", 0.0), ("fourth", 0.002), ("second", 0.0)]:
        later.at(seconds, lambda name=name: done.append(name))
    time.sleep(0.01)
    assert later.wait(7.0) == 0.0
    while do := later.due():
        do()
    assert done == ["first", "second", "third", "fourth"]
