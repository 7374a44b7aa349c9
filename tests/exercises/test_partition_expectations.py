"""Expectations of the exercise `partition`: the best cut is the best of all, and whatever is not as good is found."""

import ast
import pickle
import re
import runpy
from itertools import combinations, pairwise
from pathlib import Path

import pytest
import test_partition as asked  # what the exercise asks for
from hypothesis import given, settings
from hypothesis import strategies as st

from dtcourse.grading.best_cuts import best_cut, drawn, not_the_best, sums
from dtcourse.grading.cuts import Answer, Case, cuts, cuts_or_refusals
from dtcourse.grading.sandbox.harness import sources

RULES = runpy.run_path(str(Path(__file__).parents[2] / "solutions" / "partition.py"))


def every_cut(layers, stages):
    return [[b - a for a, b in pairwise((0, *inner, layers))] for inner in combinations(range(1, layers), stages - 1)]


def answered(cut):
    return Answer(cut, repr(cut))


def said(case, answer):
    return [finding.message for finding in not_the_best("f", [case], [answer])]


@st.composite
def cases(draw):
    costs = draw(st.lists(st.integers(0, 9), min_size=1, max_size=7))
    stages = draw(st.integers(1, len(costs)))
    if draw(st.booleans()):
        return Case(costs, stages)
    memory = draw(st.lists(st.integers(0, 9), min_size=len(costs), max_size=len(costs)))
    return Case(costs, stages, memory, draw(st.integers(0, 30)))


@settings(deadline=None, max_examples=200)
@given(cases())
def test_only_the_best_cuts_have_no_finding(case):
    cuts = every_cut(len(case.costs), case.stages)
    within = [cut for cut in cuts if all(held <= case.limit for held in sums(case.memory or [], cut))]
    least = min((max(sums(case.costs, cut)) for cut in within), default=None)
    for cut in cuts:
        good = cut in within and max(sums(case.costs, cut)) == least
        assert (said(case, answered(cut)) == []) is good
    refusal = Answer(None, f"more than {case.limit}", refused=True)
    assert (said(case, refusal) == []) is (not within)


@settings(deadline=None)
@given(cases(), st.lists(st.integers(-1, 9), max_size=7))
def test_what_is_no_cut_is_found(case, numbers):
    if numbers not in every_cut(len(case.costs), case.stages):
        (message,) = said(case, answered(numbers))
        assert f" returned {numbers}" in message


def test_the_cases_are_what_they_are_meant_to_be():
    assert all(
        best_cut(case) for case in (*asked.EXAMPLES, *asked.EDGES, *asked.EXAMPLES_WITHIN, *asked.many(within=True))
    )
    assert not any(best_cut(case) for case in asked.NONE_WITHIN)
    (free,), (bound,) = asked.many(), asked.many(within=True)
    assert free.costs == bound.costs and max(sums(free.costs, best_cut(free))) < max(sums(bound.costs, best_cut(bound)))


def test_a_sandbox_has_no_partition_of_the_course():
    there = sources(pickle.dumps((cuts, cuts_or_refusals)), ())
    assert "dtcourse.grading.cuts" in there and "dtcourse.pipeline.partition" not in there


def test_the_drawing_of_a_cut():
    case = Case([1, 2, 30], 2, [7, 7, 7], 14)
    assert drawn(case, [2, 1]).splitlines() == [
        "  stage 0   3 ==                        1 2   holds 14",
        "  stage 1  30 ========================  30    holds 7",
    ]


# -- the tables of the exercise ----------------------------------------------------------------------------------------


def rows(name):
    """The rows of the table in a docstring, in their columns."""
    lines = [line.strip() for line in RULES[name].__doc__.splitlines()]
    return [re.split(r"\s{3,}", line) for line in lines if line.startswith("[")]


def test_the_table_of_partition():
    for costs, stages, returned, taken, *_ in rows("partition"):
        costs, returned = ast.literal_eval(costs), ast.literal_eval(returned)
        assert RULES["partition"](costs, int(stages)) == returned
        assert ", ".join(map(str, sums(costs, returned))) == taken


def test_the_table_of_partition_within():
    for costs, memory, limit, stages, returned, why in rows("partition_within"):
        case = Case(ast.literal_eval(costs), int(stages), ast.literal_eval(memory), int(limit))
        if returned == "ValueError":
            with pytest.raises(ValueError, match=limit):
                RULES["partition_within"](*case.arguments)
            continue
        cut = RULES["partition_within"](*case.arguments)
        taken, held = (", ".join(map(str, sums(numbers, cut))) for numbers in (case.costs, case.memory))
        assert (str(cut), f"takes {taken}; holds {held}") == (returned, why)
