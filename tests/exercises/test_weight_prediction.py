"""The tests of the exercise `weight_prediction`: the pieces, asked directly; the policies, in an asynchronous pipeline.

On the ranks, the course's own pipeline runs PipeDream's schedule, and each of its forwards and backwards is a call of
the reader's policy. A simulation in one process, float64, knows all weights that there ever are.
"""

import itertools
from functools import partial

import pytest
import torch

from dtcourse.grading.asynchronous import (
    AskSpecTrain,
    AskStashing,
    compute_on_each,
    flat,
    predict_each,
    train,
    train_and_say,
    update_each,
)
from dtcourse.grading.findings import Finding, fail_on
from dtcourse.grading.predictions import (
    as_simulated,
    difference,
    predict_mistakes,
    spectrain_mistakes,
    stashing_mistakes,
    update_mistakes,
    velocity_mistakes,
    versions_told,
    wrong_ahead,
    wrong_versions,
)
from dtcourse.grading.serving import answers
from dtcourse.grading.simulated import spectrain, stashing
from dtcourse.pipeline.schedules import pipedream
from dtcourse.pipeline.versions import weight_versions

SIZES = {3: 6, 4: 8, 2: 4, 1: 3}  # stages -> micro-batches
SHAPES = ((2, 3), (2,), ())
DIRECTLY = "asked directly"


def words(count):
    """ "6 micro-batches"."""
    return f"{count} micro-batches"


def drawn(lists, dtype, seed=0):
    """Lists of tensors, each like the weights of one stage."""
    chance = torch.Generator().manual_seed(seed)
    return [[torch.randn(shape, generator=chance, dtype=dtype) for shape in SHAPES] for _ in range(lists)]


# -- which weights, and how they move ----------------------------------------------------------------------------------


@pytest.mark.points(1)
def test_versions(submission):
    """versions: how many updates a micro-batch meets, forward and backward, on every stage"""
    cases = [(s, stages, m) for stages in (3, 4, 1, 2, 5) for s in range(stages) for m in range(8)]
    run = submission.run("versions", cases, world=1, around=answers, given=DIRECTLY)
    right = {stages: weight_versions(pipedream(stages, 8)) for stages in range(1, 6)}
    for (s, stages, m), (answer, _) in zip(cases, run.results[0], strict=True):
        said = wrong_versions(answer, tuple(right[stages][s][m]), s, stages, m)
        fail_on(run, [Finding(said)] if said else [], DIRECTLY)


@pytest.mark.points(2)
def test_versions_on_real_ranks(submission):
    """versions, on real ranks: what it says is what the ranks did"""
    for stages, count in SIZES.items():
        given, schedule = words(count), pipedream(stages, count)
        run = submission.run("versions", schedule, world=stages, around=train_and_say, given=given)
        fail_on(run, versions_told(run, schedule), given)


@pytest.mark.points(2)
def test_update(submission):
    """update: the velocity, and then the weights with it, in place"""
    for dtype, g in itertools.product((torch.float64, torch.float32), (0.75, 0.0)):
        weights, velocity, gradients = drawn(3, dtype)
        given, cases = f"lr = 0.1, g = {g}, {dtype}", [(weights, velocity, gradients, 0.1, g)]
        run = submission.run("update", cases, world=1, around=update_each, given=given)
        fail_on(run, wrong_update(run, *cases[0]), given)


def wrong_update(run, *case):
    weights, v, gradient = map(flat, case[:3])
    lr, g = case[3:]
    seen = [flat(tensors) for tensors in run.results[0][0]]
    new = g * v + (1 - g) * gradient
    if said := difference(seen[2], gradient, {}):
        yield Finding(f"it changed the gradients: {said}")
    if said := difference(seen[1], new, velocity_mistakes(v, gradient, g)):
        yield Finding(f"the velocity becomes {said}")
    still = {"the weights are what they were before: write into the tensors": weights}
    mistakes = still | update_mistakes(weights, v, new, gradient, lr)
    if said := difference(seen[0], weights - lr * new, mistakes):
        yield Finding(said if said in mistakes else f"the weights become {said}")


@pytest.mark.points(2)
def test_compute_on(submission):
    """compute_on: computes while the values stand in the weights, and puts back the true ones"""
    for dtype in (torch.float64, torch.float32):
        weights, values = drawn(2, dtype)
        given = f"tensors of {dtype}"
        run = submission.run("compute_on", [(weights, values)], world=1, around=compute_on_each, given=given)
        fail_on(run, wrong_compute_on(run, flat(weights), flat(values)), given)


def wrong_compute_on(run, weights, values):
    met, after, given = run.results[0][0]
    if said := difference(met, values, {"the true weights: write the values into the tensors first": weights}):
        yield Finding(f"compute() met {said}")
    still = {"the values are still in the weights: put back what you have kept in memory of its own (clone)": values}
    if said := difference(flat(after), weights, still):
        yield Finding(said if said in still else f"afterwards the weights are {said}")
    if said := difference(flat(given), values, {}):
        yield Finding(f"it changed the values that it was given: {said}")


# -- stashing ----------------------------------------------------------------------------------------------------------


@pytest.mark.points(4)
def test_stashing_on_real_ranks(submission):
    """stashing, on real ranks: each backward meets the weights of its forward, and updates the newest"""
    around = partial(train, AskStashing)
    for stages, count in SIZES.items():
        given, schedule = words(count), pipedream(stages, count)
        run = submission.run(
            ("stashing_forward", "stashing_backward"), schedule, world=stages, around=around, given=given
        )
        fail_on(run, as_simulated(run, schedule, stashing, stashing_mistakes), given)


# -- SpecTrain ---------------------------------------------------------------------------------------------------------


@pytest.mark.points(1)
def test_ahead(submission):
    """ahead: how many updates SpecTrain looks ahead, forward and backward, on every stage"""
    cases = [(s, stages) for stages in (4, 1, 2, 3, 5, 8) for s in range(stages)]
    run = submission.run("ahead", cases, world=1, around=answers, given=DIRECTLY)
    for case, (answer, _) in zip(cases, run.results[0], strict=True):
        said = wrong_ahead(answer, *case)
        fail_on(run, [Finding(said)] if said else [], DIRECTLY)


@pytest.mark.points(2)
def test_predict(submission):
    """predict: W - updates lr v, in new tensors"""
    for dtype, updates in ((torch.float64, 3), (torch.float64, 1), (torch.float32, 2), (torch.float64, 0)):
        weights, velocity = drawn(2, dtype)
        given, cases = f"lr = 0.1, updates = {updates}, {dtype}", [(weights, velocity, 0.1, updates)]
        run = submission.run("predict", cases, world=1, around=predict_each, given=given)
        fail_on(run, wrong_prediction(run, flat(weights), flat(velocity), updates), given)


def wrong_prediction(run, weights, velocity, updates):
    answer, after, velocity_after = run.results[0][0]
    if difference(flat(after), weights, {}):
        yield Finding("it changed the weights that it was given, in place: return new tensors")
    if difference(flat(velocity_after), velocity, {}):
        yield Finding("it changed the velocity that it was given, in place: return new tensors")
    mistakes = {"the weights as they are": weights} | predict_mistakes(weights, velocity, 0.1, updates)
    if said := difference(flat(answer), weights - 0.1 * updates * velocity, mistakes):
        yield Finding(f"it returned {said}")


@pytest.mark.points(5)
def test_spectrain_on_real_ranks(submission):
    """SpecTrain, on real ranks: forward and backward meet the predicted weights, and the true ones are updated"""
    around = partial(train, AskSpecTrain)
    for stages, count in SIZES.items():
        given, schedule = words(count), pipedream(stages, count)
        run = submission.run(
            ("spectrain_forward", "spectrain_backward"), schedule, world=stages, around=around, given=given
        )
        fail_on(run, as_simulated(run, schedule, spectrain, spectrain_mistakes), given)
