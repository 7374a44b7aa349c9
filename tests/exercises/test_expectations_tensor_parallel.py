"""Expectations of the exercise `tensor_parallel`: in a right record, no sum, value or gradient may change."""

import dataclasses
from pathlib import Path

import pytest
import test_tensor_parallel as asked  # what the exercise asks for
import torch
from torch.nn import functional as F

from dtcourse import Run
from dtcourse.events import COLLECTIVE
from dtcourse.grading.submission import Submission

SOLUTION = Path(__file__).parents[2] / "solutions" / "tensor_parallel.py"
WORLD, HIDDEN = 3, 7


@pytest.fixture(scope="module")
def right(clusters):
    return Submission(SOLUTION, clusters).run("parallel_mlp", HIDDEN, WORLD, world=WORLD, around=asked.mlp)


def changed(run, events=None, results=None):
    events, results = run.events if events is None else events, run.results if results is None else results
    return Run(WORLD, events=events, results=results)


def findings(run):
    expected = asked.mlp_expected(asked.Whole(HIDDEN, WORLD))
    found = [*asked.adds_up(run, "it", 1, 1, 6 * asked.FEATURES), *asked.holds(run, expected)]
    return [finding.message for finding in found]


def test_every_all_reduce_counts(right):
    assert findings(right) == []
    calls = [number for number, e in enumerate(right.events) if e.kind == COLLECTIVE]
    assert len(calls) == 2 * WORLD
    for number in calls:
        e = right.events[number]
        for instead, said in (
            ([], f"rank {e.rank} did not call all_reduce"),
            ([e, e], "called all_reduce twice"),
            ([dataclasses.replace(e, op="all_gather")], "called all_gather"),
            ([dataclasses.replace(e, bytes=2 * e.bytes)], "gave 72 elements to all_reduce"),
        ):
            events = [*right.events[:number], *instead, *right.events[number + 1 :]]
            (found,) = findings(changed(right, events=events))
            assert said in found and f"in the {e.labels['way']} pass" in found


def test_every_tensor_counts(right):
    for rank, seen in enumerate(right.results):
        assert len(seen) == 1 + 5 + 1  # outputs, gradients, what was changed
        for name in seen:
            wrong = [True] if name == "changed" else seen[name] + 1
            results = [one | {name: wrong} if r == rank else one for r, one in enumerate(right.results)]
            (found,) = findings(changed(right, results=results))
            assert f"rank {rank} " in found and (name in found or name in ("outputs", "changed"))


def test_what_ranks_are_held_against_is_the_undivided_mlp():
    whole = asked.Whole(HIDDEN, WORLD)
    x = whole.x.clone().requires_grad_()
    outputs = F.linear(F.gelu(F.linear(x, *whole.up)), *whole.down)
    outputs.backward(whole.gradient)
    for one in asked.mlp_expected(whole):
        for name, right in (("outputs", outputs), ("the gradient of x", x.grad)):
            mixed = sum(amount * one[name].parts[part] for part, amount in one[name].wanted.items())
            assert torch.allclose(mixed, right)


def test_what_is_trained_differs_from_what_it_began_with():
    (before, *_), (after, *_) = asked.Whole(7, 1).up, asked.trained(1)[0][0][0]
    assert (before - after).abs().max() > 0.01
