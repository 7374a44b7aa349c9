"""Expectations of the exercise `staleness`: in a right record, no begin, update, drop, answer or number may change."""

import dataclasses
import runpy
from pathlib import Path

import pytest
import test_staleness as asked  # what the exercise asks for
import torch

from dtcourse import Run
from dtcourse.events import MARK, RECV, SEND
from dtcourse.grading.corrections import compensated
from dtcourse.grading.replay import at_once, corrected_by, first, replayed
from dtcourse.grading.serving import ASKED, AskCompensate, AskFirstK, AskMayBegin
from dtcourse.grading.submission import Submission
from dtcourse.grading.updates import first_k_applied, staleness_bounded

SOLUTION = Path(__file__).parents[2] / "solutions" / "staleness.py"


@pytest.fixture(scope="module")
def run(clusters):
    submission = Submission(SOLUTION, clusters)

    def run(name, ask, gradient, turns, constant):
        around = asked.training(ask, gradient, 3)
        return submission.run(name, [*turns], constant, world=4, around=around, given="")

    return run


def changed(run, number, **values):
    """The run with other values in one event."""
    events = list(run.events)
    events[number] = dataclasses.replace(events[number], **values)
    return Run(run.world_size, function=run.function, events=events, results=run.results)


def relabelled(run, name, **labels):
    """A run for each mark of that name, in which this one says something else."""
    for number, e in enumerate(run.events):
        if e.kind == MARK and e.op == name:
            yield changed(run, number, labels=e.labels | labels)


def published_otherwise(run):
    """A run for each message of the server, in which a number is another one."""
    for number, e in enumerate(run.events):
        if e.kind == SEND and e.rank == 0 and not e.control:
            yield changed(run, number, payload=e.payload + 1e-3)


def first_messages(runs, findings):
    found = [min(findings(run), key=lambda finding: finding.step, default=None) for run in runs]
    assert found and None not in found
    return [finding.message for finding in found]


def test_bounded_staleness(run):
    right = run("may_begin", AskMayBegin, asked.one_hot, asked.bounded_turns(3, 1), 1)
    expected = lambda run: staleness_bounded(run, 1)  # noqa: E731
    assert [*expected(right)] == []
    assert all(" began step 9 " in said for said in first_messages(relabelled(right, "begin", step=9), expected))
    allowed = (r for r in relabelled(right, ASKED, begins=False, step=3, slowest=2))
    assert all(" was kept from step 3 " in said for said in first_messages(allowed, expected))


def test_first_k(run):
    right = run("first_k", AskFirstK, asked.one_hot, asked.first_k_turns(3, 2), 2)
    expected = lambda run: first_k_applied(run, 2)  # noqa: E731
    assert [*expected(right)] == []
    late = relabelled(right, "update", staleness=1)
    assert all("and came too late" in said for said in first_messages(late, expected))
    fewer = (
        changed(right, number, op="") for number, e in enumerate(right.events) if (e.kind, e.op) == (MARK, "update")
    )
    assert all("had 1 gradient in it; k = 2" in said for said in first_messages(fewer, expected))
    silent = relabelled(right, ASKED, fit=2, answer="None")
    assert all("went on waiting with 2 gradients" in said for said in first_messages(silent, expected))
    in_time = (r for r in relabelled(right, "dropped", step=3))
    assert any("was one of the first" in finding.message for r in in_time for finding in expected(r))


def test_compensation(run):
    right = run("compensate", AskCompensate, asked.towards_its_own, asked.shuffled_turns(3), 0.3)
    rule = asked.corrected(asked.plain(0.3))
    expected = lambda run: compensated(run, rule, asked.mistakes(asked.plain(0.3)))  # noqa: E731
    assert [*expected(right)] == []
    once = [*published_otherwise(right)][3:]  # version 0 goes to all three, and one of them speaks for it
    assert all("; expected " in said or " version " in said for said in first_messages(once, expected))
    pushes = (n for n, e in enumerate(right.events) if e.kind == SEND and e.rank and not e.control)
    pushed_otherwise = (changed(right, n, payload=right.events[n].payload * 2) for n in pushes)
    assert all("; expected " in said for said in first_messages(pushed_otherwise, expected))


CORRECTED = asked.corrected(asked.plain(0.3))
PLAYS = {
    "may_begin": (AskMayBegin, asked.one_hot, [*asked.bounded_turns(3, 1)], 1, at_once, 1),
    "first_k": (AskFirstK, asked.one_hot, [*asked.first_k_turns(3, 2)], 2, first(2), None),
    "compensate": (AskCompensate, asked.towards_its_own, asked.shuffled_turns(3), 0.3, corrected_by(CORRECTED), None),
}


@pytest.mark.parametrize("name", PLAYS)
def test_a_server_is_replayed_from_its_messages_alone(name, run):
    ask, gradient, turns, constant, play, ahead = PLAYS[name]
    right = run(name, ask, gradient, turns, constant)
    expected = lambda run, turns=turns, ahead=ahead: [*replayed(run, turns, gradient, play, ahead)]  # noqa: E731
    silent = Run(right.world_size, events=[e for e in right.events if e.kind != MARK])
    assert expected(right) == expected(silent) == []
    assert all(expected(other) for other in published_otherwise(right))
    pushes = [n for n, e in enumerate(right.events) if (e.kind, e.rank, e.control) == (RECV, 0, False)]
    assert all(expected(changed(right, n, payload=right.events[n].payload + 1e-3)) for n in pushes)
    assert expected(right, turns=[*turns[:-1]]) and expected(Run(4))
    if ahead is not None:
        assert "parameters for step 1 when" in expected(right, ahead=0)[0].message


def test_the_examples_of_the_exercise():
    """The tables and examples in the docstrings are right."""
    rules = runpy.run_path(str(SOLUTION))
    for completed, may in (
        ({1: 0, 2: 0, 3: 0}, True),
        ({1: 0, 2: 1, 3: 1}, True),
        ({1: 0, 2: 2, 3: 3}, False),
        ({1: 1, 2: 2, 3: 4}, True),
        ({2: 7}, True),
    ):
        assert rules["may_begin"](2, completed, 1) is may
    for steps, shares in (
        ([], None),
        ([5], None),
        ([4, 5], None),
        ([4, 5, 3, 5], [0.0, 0.5, 0.0, 0.5]),
        ([5, 5, 5], [0.5, 0.5, 0.0]),
    ):
        assert rules["first_k"](steps, 5, 2) == shares
    g, w, backup, zero = (torch.tensor([x], dtype=torch.float64) for x in (2, 3, 2.5, 0))
    assert rules["compensate"](g, w, backup, 0.1).item() == pytest.approx(2.2)
    applied, mean_square = rules["compensate_adaptive"](g, w, backup, 0.1, zero, 0.75)
    assert (applied.item(), mean_square.item()) == pytest.approx((2.2, 1.0))
