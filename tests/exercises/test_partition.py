"""The tests of the exercise `partition`: the function is asked for cuts of many lists of layers, and none is better.

The cases of a test go from few layers to many, so that the first that goes wrong is a simple one.
"""

import math
import random

import pytest

from dtcourse.grading.best_cuts import best_cut, not_the_best
from dtcourse.grading.cuts import Case, cuts, cuts_or_refusals
from dtcourse.grading.findings import fail_on

FEW = "a few layers"
LAYERS, STAGES = 60, 8
MANY = f"{LAYERS} layers, which go into {STAGES} stages in {math.comb(LAYERS - 1, STAGES - 1):,} ways"

EXAMPLES = [
    Case([6, 1, 1, 1, 1, 2], 2),
    Case([1, 2, 3, 4, 5], 2),
    Case([3, 3, 6, 1], 3),
    Case([2, 2, 2, 2], 3),
    Case([0, 9, 0], 3),
]
EDGES = [
    Case([5], 1),
    Case([3, 1, 2], 1),
    Case([3, 1, 2], 3),
    Case([0, 0, 0, 0], 2),
    Case([0, 0, 0, 7], 2),
    Case([7, 0, 0, 0], 3),
    Case([1, 9, 3, 3], 3),
    Case([1, 1, 100, 1, 1], 2),
    Case([1, 1, 100, 1, 1], 4),
    Case([4] * 7, 3),
    Case([9, 9, 1, 1, 1, 1, 1, 1], 4),
]
EXAMPLES_WITHIN = [
    Case([1, 1, 1, 9], 2, [4, 4, 4, 1], 100),
    Case([5, 5, 5, 5], 2, [1, 1, 1, 1], 3),
    Case([1, 1, 1, 9], 2, [4, 4, 4, 1], 9),
]
NONE_WITHIN = [
    Case([1, 1, 1, 9], 2, [4, 4, 4, 1], 7),
    Case([1, 1, 1, 9], 4, [4, 4, 4, 1], 3),
    Case([5], 1, [10], 9),
    Case([1, 2, 3, 4, 5, 6], 3, [2, 2, 2, 2, 2, 2], 3),
    Case([0, 0, 0], 1, [1, 1, 1], 2),
]


def some(number, chance, within=False):
    """Cases of up to 10 layers, small ones first. `within`: with memory, and a limit that some cuts keep."""
    cases = []
    while len(cases) < number:
        layers, most = chance.randint(1, 10), chance.choice((3, 9, 30))
        case = Case([chance.randint(0, most) for _ in range(layers)], chance.randint(1, min(5, layers)))
        if within:
            memory = [chance.randint(0, 9) for _ in range(layers)]
            case = case._replace(memory=memory, limit=chance.randint(max(memory), sum(memory)))
        if not within or best_cut(case):
            cases.append(case)
    return sorted(cases, key=lambda case: (len(case.costs), case.stages))


def many(within=False):
    """60 layers into 8 stages."""
    chance = random.Random(60)
    costs, memory = ([chance.randint(0, 1000) for _ in range(LAYERS)] for _ in range(2))
    return [Case(costs, STAGES, memory, sum(memory) // 7) if within else Case(costs, STAGES)]


# -- by time -----------------------------------------------------------------------------------------------------------


@pytest.mark.points(3)
def test_partition_of_a_few(submission):
    """by time: a few layers, and the largest stage is as small as can be"""
    cases = EXAMPLES + some(200, random.Random(0))
    run = submission.run("partition", cases, world=1, around=cuts, given=FEW)
    fail_on(run, not_the_best("partition", cases, run.results[0]), FEW)


@pytest.mark.points(1)
def test_partition_of_all_kinds(submission):
    """by time: one stage, a stage for each layer, layers that cost nothing, one huge layer, equal layers"""
    run = submission.run("partition", EDGES, world=1, around=cuts, given=FEW)
    fail_on(run, not_the_best("partition", EDGES, run.results[0]), FEW)


@pytest.mark.points(2)
def test_partition_of_many(submission):
    """by time: 60 layers into 8 stages, without trying every cut"""
    run = submission.run("partition", many(), world=1, around=cuts, given=MANY)
    fail_on(run, not_the_best("partition", many(), run.results[0]), MANY)


# -- within a limit ----------------------------------------------------------------------------------------------------


@pytest.mark.points(3)
def test_within_of_a_few(submission):
    """within a limit: no stage holds more, and of those cuts the largest stage is as small as can be"""
    cases = EXAMPLES_WITHIN + some(200, random.Random(1), within=True)
    run = submission.run("partition_within", cases, world=1, around=cuts_or_refusals, given=FEW)
    fail_on(run, not_the_best("partition_within", cases, run.results[0]), FEW)


@pytest.mark.points(2)
def test_within_refuses(submission):
    """within a limit: what no cut can keep is refused, and the message says so"""
    run = submission.run("partition_within", NONE_WITHIN, world=1, around=cuts_or_refusals, given=FEW)
    fail_on(run, not_the_best("partition_within", NONE_WITHIN, run.results[0]), FEW)


@pytest.mark.points(1)
def test_within_of_many(submission):
    """within a limit: 60 layers into 8 stages, without trying every cut"""
    cases = many(within=True)
    run = submission.run("partition_within", cases, world=1, around=cuts_or_refusals, given=MANY)
    fail_on(run, not_the_best("partition_within", cases, run.results[0]), MANY)
