"""The tests of the exercise `pipeline_schedules`: what is in the lists, whether they can run, and what that costs.

Each rank is asked for its own list. Put together, the lists are a schedule as the course knows it, whose tools say what
is wrong with it.
"""

import pytest

from dtcourse.grading.findings import fail_on
from dtcourse.grading.pipelining import as_planned, gradients_of_the_batch, one_batch
from dtcourse.grading.schedules import (
    comes_to_its_end,
    each_once,
    in_the_right_order,
    kept,
    own_list,
    planned,
    takes_longer,
)
from dtcourse.pipeline import schedules

ENOUGH = {3: (4, 9), 4: (4, 6), 5: (7,), 2: (5,)}  # stages -> numbers of micro-batches
FEW = {4: (1, 3), 3: (2,), 5: (4,), 2: (1,), 1: (1, 4)}


def words(count):
    """ "1 micro-batch", "4 micro-batches"."""
    return f"{count} micro-batch{'es' if count > 1 else ''}"


def fail_on_gpipe(run, plan, given):
    """GPipe, whatever the sizes."""
    right = schedules.gpipe(plan.stages, plan.microbatches)
    fail_on(run, each_once(plan), given)
    fail_on(run, comes_to_its_end(plan), given)
    fail_on(run, takes_longer(plan, right, "GPipe"), given)
    fail_on(run, in_the_right_order(plan, right, "GPipe"), given)


def fail_on_1f1b(run, plan, given):
    """1F1B, whatever the sizes."""
    right = schedules.one_f_one_b(plan.stages, plan.microbatches)
    fail_on(run, each_once(plan), given)
    fail_on(run, comes_to_its_end(plan), given)
    fail_on(run, kept(plan, right, "1F1B", "min(P-s, M)"), given)
    fail_on(run, takes_longer(plan, right, "1F1B"), given)
    fail_on(run, in_the_right_order(plan, right, "1F1B"), given)


# -- GPipe -------------------------------------------------------------------------------------------------------------


@pytest.mark.points(1)
def test_gpipe_does_each_once(submission):
    """GPipe: each rank does the forward and the backward of each micro-batch once"""
    for stages, counts in ENOUGH.items():
        for count in counts:
            given = words(count)
            run = submission.run("gpipe", count, world=stages, around=own_list, given=given)
            plan = planned(run.results, count)
            fail_on(run, each_once(plan), given)


@pytest.mark.points(2)
def test_gpipe_order(submission):
    """GPipe: all forwards, then all backwards, from micro-batch 0 to the last"""
    for stages, counts in ENOUGH.items():
        for count in counts:
            given = words(count)
            run = submission.run("gpipe", count, world=stages, around=own_list, given=given)
            plan = planned(run.results, count)
            fail_on_gpipe(run, plan, given)


@pytest.mark.points(1)
def test_gpipe_of_few(submission):
    """GPipe: fewer micro-batches than stages, one micro-batch, one stage"""
    for stages, counts in FEW.items():
        for count in counts:
            given = words(count)
            run = submission.run("gpipe", count, world=stages, around=own_list, given=given)
            plan = planned(run.results, count)
            fail_on_gpipe(run, plan, given)


# -- 1F1B --------------------------------------------------------------------------------------------------------------


@pytest.mark.points(1)
def test_1f1b_does_each_once(submission):
    """1F1B: each rank does the forward and the backward of each micro-batch once"""
    for stages, counts in ENOUGH.items():
        for count in counts:
            given = words(count)
            run = submission.run("one_f_one_b", count, world=stages, around=own_list, given=given)
            plan = planned(run.results, count)
            fail_on(run, each_once(plan), given)


@pytest.mark.points(2)
def test_1f1b_comes_to_its_end(submission):
    """1F1B: nobody waits for ever"""
    for stages, counts in ENOUGH.items():
        for count in counts:
            given = words(count)
            run = submission.run("one_f_one_b", count, world=stages, around=own_list, given=given)
            plan = planned(run.results, count)
            fail_on(run, each_once(plan), given)
            fail_on(run, comes_to_its_end(plan), given)


@pytest.mark.points(4)
def test_1f1b_memory_time_and_order(submission):
    """1F1B: it keeps no more activations than min(P-s, M), takes no longer than GPipe, and goes in order"""
    for stages, counts in ENOUGH.items():
        for count in counts:
            given = words(count)
            run = submission.run("one_f_one_b", count, world=stages, around=own_list, given=given)
            plan = planned(run.results, count)
            fail_on_1f1b(run, plan, given)


@pytest.mark.points(2)
def test_1f1b_of_few(submission):
    """1F1B: fewer micro-batches than stages, one micro-batch, one stage"""
    for stages, counts in FEW.items():
        for count in counts:
            given = words(count)
            run = submission.run("one_f_one_b", count, world=stages, around=own_list, given=given)
            plan = planned(run.results, count)
            fail_on_1f1b(run, plan, given)


# -- both --------------------------------------------------------------------------------------------------------------


@pytest.mark.points(2)
def test_on_real_ranks(submission):
    """both, on real ranks: the gradients of the whole batch, and everything in the order of the lists"""
    for name in ("gpipe", "one_f_one_b"):
        for stages, count in ((3, 4), (3, 2), (1, 3)):
            given = words(count)
            run = submission.run(name, count, world=stages, around=one_batch, given=given)
            fail_on(run, as_planned(run, count), given)
            fail_on(run, gradients_of_the_batch(run, count), given)
