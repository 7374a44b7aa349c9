"""Expectations of the exercise `pipeline_schedules`: right lists have no findings, and no list may change anywhere."""

import dataclasses
import inspect
import pickle
import random
import runpy
from pathlib import Path

import pytest
import test_pipeline_schedules as asked  # what the exercise asks for
from hypothesis import given, settings
from hypothesis import strategies as st

from dtcourse import Run
from dtcourse.events import REGION
from dtcourse.grading.findings import CheckFailed
from dtcourse.grading.pipelining import as_planned, gradients_of_the_batch, one_batch
from dtcourse.grading.sandbox.harness import sources
from dtcourse.grading.schedules import listed, own_list, planned
from dtcourse.grading.submission import Submission
from dtcourse.pipeline.draw import chart

SOLUTION = Path(__file__).parents[2] / "solutions" / "pipeline_schedules.py"
RULES = runpy.run_path(str(SOLUTION))
EXPECTED = {"gpipe": asked.fail_on_gpipe, "one_f_one_b": asked.fail_on_1f1b}

each_rule = pytest.mark.parametrize("name", EXPECTED)


def lists(name, stages, microbatches):
    return [listed(RULES[name](rank, stages, microbatches)) for rank in range(stages)]


def fail_on_these(name, lists, microbatches):
    EXPECTED[name](Run(len(lists), function=name), planned(lists, microbatches), asked.words(microbatches))


@each_rule
def test_the_tables_of_the_exercise(name):
    rows = [row for row in inspect.getdoc(RULES[name]).splitlines() if row.strip().startswith("rank ")]
    assert chart(planned(lists(name, 3, 4), 4)).splitlines() == [row.strip() for row in rows]


def test_the_example_of_the_exercise():
    text = " ".join(RULES["gpipe"].__doc__.split())
    assert f"gpipe(0, 3, 4) is {RULES['gpipe'](0, 3, 4)}".replace("'", '"') in text


@each_rule
def test_right_lists_have_no_findings(name):
    for stages in range(1, 9):
        for microbatches in range(1, 20):
            fail_on_these(name, lists(name, stages, microbatches), microbatches)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(EXPECTED)), st.integers(1, 5), st.integers(1, 7), st.randoms(use_true_random=False))
def test_no_list_may_change(name, stages, microbatches, chance):
    right = lists(name, stages, microbatches)
    other = [list(pairs) for pairs in right]
    change(chance.choice(other), microbatches, chance)
    if other != right:
        with pytest.raises(CheckFailed, match=f"{name} on {stages} ranks?, {asked.words(microbatches)}: "):
            fail_on_these(name, other, microbatches)


def change(pairs: list, microbatches: int, chance: random.Random):
    """Take an action away, do one again, do another one, or change two, in one list."""
    place, elsewhere = chance.randrange(len(pairs)), chance.randrange(len(pairs))
    match chance.randrange(4):
        case 0:
            del pairs[place]
        case 1:
            pairs.insert(place, pairs[elsewhere])
        case 2:
            pairs[place] = (chance.choice("FB"), chance.randint(-1, microbatches))
        case 3:
            pairs[place], pairs[elsewhere] = pairs[elsewhere], pairs[place]


def test_a_sandbox_has_the_runner_and_no_schedules_of_the_course():
    there = sources(pickle.dumps((own_list, one_batch)), ())
    assert {"dtcourse.pipeline.runner", "dtcourse.pipeline.lowering"} <= set(there)
    assert "dtcourse.pipeline.schedules" not in there


def test_a_run_that_went_otherwise(clusters):
    right = Submission(SOLUTION, clusters).run("gpipe", 2, world=3, around=one_batch)
    assert [*as_planned(right, 2), *gradients_of_the_batch(right, 2)] == []
    for number, e in enumerate(right.events):
        if e.kind == REGION and e.op in ("forward", "backward"):
            events = list(right.events)
            events[number] = dataclasses.replace(e, labels=e.labels | {"microbatch": 7})
            (finding,) = as_planned(Run(3, function="gpipe", events=events, results=right.results), 2)
            assert finding.message.startswith(f"rank {e.rank} did ") and "7" in finding.message
    for rank, (pairs, gradients) in enumerate(right.results):
        results = list(right.results)
        results[rank] = pairs, [gradients[0] * 1.001, gradients[1]]
        (finding,) = gradients_of_the_batch(Run(3, function="gpipe", results=results), 2)
        assert finding.message.startswith(f"the gradient of stage {rank} is off by ")
