"""Expectations of the exercise `layer_split`: in a right record, no message, value or gradient may change."""

import dataclasses
from functools import partial
from pathlib import Path

import pytest
import test_layer_split as asked  # what the exercise asks for
import torch

from dtcourse import Run
from dtcourse.events import SEND
from dtcourse.grading.letters import Known
from dtcourse.grading.submission import Submission

SOLUTION = Path(__file__).parents[2] / "solutions" / "layer_split.py"
SIZES, SAMPLES = [2, 1, 2], [3, 2]


@pytest.fixture(scope="module")
def right(clusters):
    names = "stage_forward", "stage_backward"
    return Submission(SOLUTION, clusters).run(names, SIZES, SAMPLES, world=3, around=asked.both)


def changed(run, events=None, results=None):
    return Run(3, events=run.events if events is None else events, results=run.results if results is None else results)


def findings(run):
    whole = asked.Undivided(SAMPLES)
    found = [*asked.travels(run, whole, SIZES, forward=True, backward=True), *asked.parameters_have(run, whole, SIZES)]
    return [finding.message for finding in found]


def test_every_message_counts(right):
    assert findings(right) == []
    sends = [number for number, e in enumerate(right.events) if e.kind == SEND]
    assert len(sends) == 2 * 2 * len(SAMPLES)
    for number in sends:
        e, events = right.events[number], list(right.events)
        payload = e.payload.clone()
        payload.view(-1)[0] += 1
        for wrong, said in (
            ([dataclasses.replace(e, payload=payload)], "that the whole model has nowhere; expected"),
            ([dataclasses.replace(e, payload=3 * e.payload)], ", times 3; expected"),
            ([dataclasses.replace(e, peer=e.rank)], f"rank {e.rank} sent to rank {e.rank}"),
            ([], "is missing"),
            ([e, e], "too many"),
        ):
            events[number : number + 1] = wrong
            assert said in " ".join(findings(changed(right, events=events)))
            events = list(right.events)


def test_every_gradient_counts(right):
    for rank, gradients in enumerate(right.results):
        for place, gradient in enumerate(gradients):
            results = [list(one) for one in right.results]
            results[rank][place] = 2 * gradient
            (said,) = findings(changed(right, results=results))
            assert f"rank {rank} ends with 2 g[0] + 2 g[1] as gradient of" in said
            results[rank][place] = None
            (said,) = findings(changed(right, results=results))
            assert f"rank {rank} ends with None as gradient of" in said


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (lambda x: x, None),
        (lambda x: x.view(6), None),
        (lambda x: 2 * x, "x, times 2"),
        (lambda x: x / 3, "x, times 1/3"),
        (lambda x: x.float(), "x, as float32"),
        (lambda x: x + 1, "y"),
        (lambda x: torch.zeros_like(x), "zeros"),
        (lambda x: x * torch.nan, "nan"),
        (lambda x: x[0], "z"),
        (lambda x: x**2, "float64 (2, 3) that the whole model has nowhere"),
    ],
)
def test_a_known_tensor_is_called_by_its_name(value, said):
    x = torch.randn(2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    wrong = Known("x", x, {"y": x + 1, "z": x[0]}).wrong(value(x))
    assert (wrong and wrong[0]) == said
    assert wrong is None or wrong[1].startswith("x")


def test_what_travels_is_named_by_who_sends_it():
    known = dict(asked.Undivided([3]).known(2, 3))
    assert list(known)[:4] == ["its outputs", "its inputs", "the outputs of layer 0", "the outputs of layer 3"]
    assert known["its inputs"].shape == known["the gradient of its inputs"].shape == (3, 6)


def test_bytes_are_those_of_the_cuts():
    assert asked.boundary_bytes([5], [7])[0] == [0]
    assert asked.boundary_bytes([2, 1, 2], [3, 2])[0] == [8 * 5 * 6, 8 * 5 * (6 + 5), 8 * 5 * 5]


def test_two_batches_of_different_sizes_under_way(clusters):
    around = partial(asked.both, together=True)
    run = Submission(SOLUTION, clusters).run(
        ("stage_forward", "stage_backward"), SIZES, SAMPLES, world=3, around=around
    )
    assert findings(run) == []
