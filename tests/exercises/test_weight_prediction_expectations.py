"""Expectations of the exercise `weight_prediction`: in a right record nothing may change; what is said is true."""

import dataclasses
import inspect
import itertools
import pickle
import re
import runpy
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from dtcourse import Run
from dtcourse.events import REGION, SEND
from dtcourse.grading.asynchronous import LR, AskSpecTrain, AskStashing, G, data, flat, train, train_and_say
from dtcourse.grading.pipelining import stages_of_a_model
from dtcourse.grading.predictions import (
    as_simulated,
    difference,
    predict_mistakes,
    spectrain_mistakes,
    stashing_mistakes,
    update_mistakes,
    velocity_mistakes,
    versions_told,
)
from dtcourse.grading.sandbox.harness import sources
from dtcourse.grading.serving import answers
from dtcourse.grading.simulated import simulated, spectrain, stashing
from dtcourse.grading.submission import Submission
from dtcourse.pipeline.draw import chart
from dtcourse.pipeline.schedules import pipedream

SOLUTION = Path(__file__).parents[2] / "solutions" / "weight_prediction.py"
RULES = runpy.run_path(str(SOLUTION))
SCHEDULE = pipedream(3, 5)
POLICIES = {
    "stashing": (AskStashing, stashing, stashing_mistakes),
    "spectrain": (AskSpecTrain, spectrain, spectrain_mistakes),
}


@pytest.fixture(scope="module", params=POLICIES)
def policy(request, clusters):
    """A right run of a policy, and what is expected of it."""
    ask, *expected = POLICIES[request.param]
    functions = tuple(f"{request.param}_{way}" for way in ("forward", "backward"))
    run = Submission(SOLUTION, clusters).run(functions, SCHEDULE, world=3, around=partial(train, ask))
    return run, lambda run: [finding.message for finding in as_simulated(run, SCHEDULE, *expected)]


def changed(run, rank, place, field):
    """The run with another value in one field of one action of a rank."""
    results = [list(record) for record in run.results]
    seen = list(results[rank][place])
    seen[field] = seen[field] + (1e-6 if isinstance(seen[field], torch.Tensor) else 9)
    results[rank][place] = tuple(seen)
    return Run(3, function=run.function, events=run.events, results=results)


def test_no_action_may_have_met_or_left_anything_else(policy):
    right, expected = policy
    assert expected(right) == []
    for rank, actions in enumerate(SCHEDULE.ranks):
        for place, (kind, m, _) in enumerate(actions):
            for field, words in enumerate(("compute() met", "the weights", "the velocity", "its stash")):
                if field < 3 or kind == "B":
                    (said,) = expected(changed(right, rank, place, field))
                    assert said.startswith(f"in {kind}{m} on stage {rank}, {words}")


def test_no_message_may_have_carried_anything_else(policy):
    right, expected = policy
    sends = [number for number, e in enumerate(right.events) if e.kind == SEND and not e.control]
    assert len(sends) == 2 * 2 * 5
    for number in sends:
        events = list(right.events)
        events[number] = dataclasses.replace(events[number], payload=events[number].payload + 1e-6)
        (said,) = expected(Run(3, function=right.function, events=events, results=right.results))
        assert re.search(r"the (activation|gradient) that went to stage \d is not what those weights make", said)
    (said,) = expected(Run(3, function=right.function, results=right.results))
    assert said.startswith("in F0 on stage 0, the activation that went to stage 1 is not")


def test_what_is_said_of_versions_is_held_against_the_regions(clusters):
    right = Submission(SOLUTION, clusters).run("versions", SCHEDULE, world=3, around=train_and_say)
    assert [*versions_told(right, SCHEDULE)] == []
    for number, e in enumerate(right.events):
        if e.kind == REGION and e.op in ("forward", "backward"):
            events = list(right.events)
            events[number] = dataclasses.replace(e, labels=e.labels | {"version": 7})
            (finding,) = versions_told(Run(3, events=events, results=right.results), SCHEDULE)
            assert finding.message.startswith(f"versions({e.rank}, 3, {e.labels['microbatch']}) returned (")


def test_one_stage_is_plain_training_with_momentum():
    (module,) = stages_of_a_model(1)
    velocity = [torch.zeros_like(parameter) for parameter in module.parameters()]
    for moment in simulated(pipedream(1, 4), spectrain):
        if moment.gradient is not None:
            module.zero_grad()
            samples, targets = data(4)[:, moment.action.microbatch]
            mse_loss(module(samples), targets).backward()
            gradients = [parameter.grad for parameter in module.parameters()]
            RULES["update"]([parameter.data for parameter in module.parameters()], velocity, gradients, LR, G)
            torch.testing.assert_close(flat([*module.parameters()]), moment.weights)


def test_with_stashing_the_gradients_are_those_of_autograd():
    stages, kept = stages_of_a_model(3), {}
    for moment in simulated(SCHEDULE, stashing):
        kept[moment.action] = moment
    for m in range(5):
        weights = [kept["F", m, s].met for s in range(3)]
        for stage, values in zip(stages, weights, strict=True):
            nn.utils.vector_to_parameters(values, stage.parameters())
            stage.zero_grad()
        samples, targets = data(5)[:, m]
        mse_loss(nn.Sequential(*stages)(samples), targets).backward()
        for s, stage in enumerate(stages):
            torch.testing.assert_close(kept["B", m, s].gradient, flat([p.grad for p in stage.parameters()]))


def test_no_mistake_is_taken_for_another_one():
    weights, old, gradient = torch.randn(3, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    new = 0.75 * old + 0.25 * gradient
    for right, mistakes in (
        (weights - 3 * 0.1 * old, predict_mistakes(weights, old, 0.1, 3)),
        (new, velocity_mistakes(old, gradient, 0.75)),
        (weights - 0.1 * new, update_mistakes(weights, old, new, gradient, 0.1)),
    ):
        assert all(difference(mistake, right, mistakes) == words for words, mistake in mistakes.items())
        assert difference(right, right, mistakes) is None
        assert re.fullmatch(r"\S+ at position 0 of 6, where \S+ is expected", difference(right + 1, right, mistakes))


def test_a_sandbox_has_no_policy_and_no_schedule_of_the_course():
    there = sources(pickle.dumps((train, train_and_say, AskStashing, AskSpecTrain)), ())
    assert {"dtcourse.pipeline.runner", "dtcourse.grading.asynchronous"} <= set(there)
    for absent in ("pipeline.weights", "pipeline.schedules", "grading.simulated", "grading.predictions"):
        assert f"dtcourse.{absent}" not in there
    assert not any("pipeline" in module for module in sources(pickle.dumps(answers), ()))


def test_the_examples_of_the_exercise():
    """The tables and examples in the docstrings are right."""
    table = [row.replace("rank", "stage") for row in chart(pipedream(3, 9)).splitlines()]
    rows = [row.strip() for row in inspect.getdoc(RULES["versions"]).splitlines() if row.startswith("    stage ")]
    assert len(rows) == 3
    assert all(whole.startswith(row.removesuffix("...")) for row, whole in zip(rows, table, strict=True))
    assert RULES["versions"](0, 3, 3) == (1, 3)
    told = re.findall(r"stage (\d)    (\(\d, \d\))", RULES["ahead"].__doc__)
    assert [(str(s), str(RULES["ahead"](s, 4))) for s in range(4)] == told
    w, v, gradient = ([torch.tensor(x, dtype=torch.float64)] for x in (1, 2, 4))
    assert RULES["predict"](w, v, 0.1, 3)[0].item() == pytest.approx(0.4)
    RULES["update"](w, v, gradient, 0.1, 0.75)
    assert (v[0].item(), w[0].item()) == pytest.approx((2.5, 0.75))


def test_forward_and_backward_of_a_micro_batch_aim_at_the_same_weights():
    for stages, m in itertools.product(range(1, 9), (20, 30)):
        for s in range(stages):
            met, ahead = RULES["versions"](s, stages, m), RULES["ahead"](s, stages)
            forward, backward = (sum(pair) for pair in zip(met, ahead, strict=True))
            assert forward == backward
