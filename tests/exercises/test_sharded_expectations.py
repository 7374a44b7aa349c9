"""Expectations of `sharded`: they hold for the solution, and no single call, message or number of its may change."""

import dataclasses

import pytest
import test_sharded as asked  # what the exercise asks for
import torch

from dtcourse import Run
from dtcourse.events import REGION, SEND
from dtcourse.grading import suite
from dtcourse.grading.findings import CheckFailed
from dtcourse.grading.living import Living
from dtcourse.grading.sharding import CALLS, own_span, still_there
from dtcourse.grading.submission import Clusters, Submission

SOLUTION = suite.COURSE / "solutions" / "sharded.py"


@pytest.fixture(scope="module")
def solution():
    with Clusters() as clusters:
        yield Submission(SOLUTION, clusters)


class Recorded:
    """In place of a submission: it runs nothing, and answers with this record."""

    def __init__(self, run, seed=0):
        self.record, self.seed = run, seed

    def run(self, *_, **__):
        return self.record


class Listening:
    """A submission of which each run is kept."""

    def __init__(self, submission):
        self.submission, self.seed, self.runs = submission, submission.seed, []

    def run(self, *arguments, **named):
        self.runs.append(self.submission.run(*arguments, **named))
        return self.runs[-1]


CHECKS = {
    "average_own": lambda submission: asked.check_average_own(submission, 3, asked.lengths_of(3)[:1], [3, 1, 2]),
    "zero_1_step": lambda submission: asked.check_zero_1(submission, 3, asked.lengths_of(3)[1]),
    "zero_2_gradients": lambda submission: asked.check_zero_2(submission, 3, asked.lengths_of(3)),
    "gather": lambda submission: asked.check_gather(submission, 3, asked.lengths_of(3)[:2]),
    "zero_3_gradients": lambda submission: asked.check_zero_3(submission, 3, asked.lengths_of(3)),
}


@pytest.fixture(scope="module", params=CHECKS)
def right(request, solution):
    """A check, and the record of a run that passes it."""
    listening = Listening(solution)
    CHECKS[request.param](listening)
    (run,) = listening.runs
    return CHECKS[request.param], run


def changed(run, events=None, results=None):
    return Run(
        run.world_size,
        function=run.function,
        events=run.events if events is None else events,
        results=run.results if results is None else results,
        sources=run.sources,
    )


def fails(check, run):
    with pytest.raises(CheckFailed) as failed:
        check(Recorded(run))
    return str(failed.value)


def test_every_call_counts(right):
    check, run = right
    check(Recorded(run))
    for number, e in enumerate(run.events):
        if e.kind == REGION and e.op in CALLS:
            without = [one for one in run.events if one is not e]
            assert "; expected" in fails(check, changed(run, without))
            twice = [*run.events[:number], e, *run.events[number:]]
            assert "; expected" in fails(check, changed(run, twice))
            told = {name: value + 1 for name, value in e.labels.items()}
            other = [dataclasses.replace(e, labels=told) if one is e else one for one in run.events]
            assert "; expected" in fails(check, changed(run, other))


def test_every_byte_counts(right):
    check, run = right
    for e in run.events:
        if e.kind == SEND:
            more = [dataclasses.replace(e, bytes=e.bytes + 8) if one is e else one for one in run.events]
            assert f"rank {e.rank} sent" in fails(check, changed(run, more))
            hidden = [dataclasses.replace(e, control=True) if one is e else one for one in run.events]
            assert "as control traffic" in fails(check, changed(run, hidden))


def test_every_number_counts(right):
    check, run = right
    for tensor in list(tensors_in(run.results)):
        for at in {0, len(tensor) // 2, len(tensor) - 1}:
            before = float(tensor[at])
            tensor[at] += 1
            assert fails(check, run)
            tensor[at] = before
    check(Recorded(run))


def tensors_in(results):
    if isinstance(results, torch.Tensor):
        yield results
    for one in results.values() if isinstance(results, dict) else results if isinstance(results, (list, tuple)) else ():
        yield from tensors_in(one)


def test_own_spans_are_what_the_ring_leaves():
    for world in range(1, 6):
        for length in range(12):
            chunks = torch.arange(length).tensor_split(world)
            for place in range(world):
                assert torch.arange(length)[own_span(length, place, world)].equal(chunks[(place + 1) % world])


# -- what is in memory -------------------------------------------------------------------------------------------------


def test_what_lives():
    given = torch.zeros(5)
    with Living() as living:
        assert living.there() == []
        living.follow(given, "the given one")
        made = given * 2
        view = made[1:3]
        with living.aside():
            elsewhere = torch.ones(100)
        both = [made + 1, *torch.ones(7).split(4)]
        assert sorted(living.there()) == [("", 20), ("", 20), ("", 28), ("the given one", 20)]
        del made, both[0]
        assert sorted(living.there()) == [("", 20), ("", 28), ("the given one", 20)]  # the view keeps all of it
        del view, both, given
        assert living.there() == [] and len(elsewhere) == 100


def test_what_is_still_there_is_told():
    layers = {72: 0, 96: 1}
    there = [("", 8), ("the gradient", 96), ("", 72)]
    assert still_there(there, layers) == "the gradient was still in memory: some name or list has it"
    assert still_there(there, layers, ["the gradient"]).startswith("a tensor as large as all of layer 0 was")
    assert still_there(there, layers, ["the gradient", 0]) == ""
