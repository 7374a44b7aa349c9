"""Expectations of `collectives`: the tables of the exercise agree with them, and no message or number may change."""

import ast
import dataclasses
import re
from pathlib import Path

import pytest
import test_collectives as asked  # what the exercise asks for
from hypothesis import given, settings
from hypothesis import strategies as st

from dtcourse import Run, per_rank
from dtcourse.events import RECV, RETURN, SEND
from dtcourse.grading.costs import Question, not_the_fastest, questions, wrong_seconds
from dtcourse.grading.findings import CheckFailed
from dtcourse.grading.rounds import in_turn, wrong_receives
from dtcourse.grading.submission import Clusters, Submission
from dtcourse.grading.values import holdings

SOLUTION = Path(__file__).parent.parent.parent / "solutions" / "collectives.py"


# -- the tables of the exercise ----------------------------------------------------------------------------------------


def table(function):
    """Rank -> the cells of its row, in the docstring of a function of the exercise."""
    tree = ast.parse(SOLUTION.read_text())
    text = next(ast.get_docstring(node) for node in tree.body if getattr(node, "name", "") == function)
    rows = (re.match(r" *rank (\d) sends(?: to)?  +([^a-z]*(?:to \d[^a-z]*)*)", line) for line in text.splitlines())
    return {int(row[1]): re.split(r"  +", row[2].strip()) for row in rows if row}


def cells(sendings, rank):
    (s,) = [s for s in sendings if s.rank == rank] or [None]
    if s is None:
        return "-"
    chunks = s.chunk if isinstance(s.chunk, range) else [s.chunk]
    return f"{s.to}" if s.chunk is None else f"{' '.join(map(str, chunks))} to {s.to}"


@pytest.mark.parametrize(
    ("function", "rounds"),
    [
        ("tree_broadcast", list(asked.down(6, 0))),
        ("tree_reduce", list(asked.up(6, 0))),
        ("halving", list(asked.halving(range(4), [(r,) for r in range(4)]))),
        ("doubling", list(asked.doubling(range(4), (0, 1, 2, 3)))),
    ],
)
def test_the_tables_of_the_exercise(function, rounds):
    rows = table(function)
    senders = {s.rank for _, sendings in rounds for s in sendings}
    assert set(rows) == senders
    for rank, row in rows.items():
        expected = [cells(sendings, rank) for _, sendings in rounds]
        drawn = row[: len(rounds)]  # what a rank has in the end may stand beside it
        assert drawn == expected[: len(drawn)] and set(expected[len(drawn) :]) <= {"-"}


def test_six_ranks_as_the_exercise_has_them():
    rounds = [sendings for _, sendings in asked.all_reduce(6)]
    assert [(s.rank, s.to) for s in rounds[0]] == [(0, 1), (2, 3)]
    assert [(s.rank, s.to) for s in rounds[-1]] == [(1, 0), (3, 2)]
    assert {s.rank for sendings in rounds[1:-1] for s in sendings} == {1, 3, 4, 5}


@pytest.mark.parametrize("world", [*range(1, 18), 100])
def test_the_costs_are_those_of_the_messages(world):
    """As many steps as rounds, and of each round its largest message."""
    power, costs = asked.greatest_power(world), asked.costs(world)
    share = lambda chunk: 1 if chunk is None else (len(chunk) if isinstance(chunk, range) else 1) / power  # noqa: E731
    for algorithm, rounds in (
        ("tree", [*asked.up(world, 0), *asked.down(world, 0)]),
        ("halving_doubling", list(asked.all_reduce(world))),
    ):
        cost = costs[algorithm, world]
        assert cost.steps == len(rounds)
        assert cost.tensors == pytest.approx(sum(max(share(s.chunk) for s in sendings) for _, sendings in rounds))
    assert costs["ring", world].steps == 2 * (world - 1)


# -- a right record, changed in one place ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def submission():
    with Clusters() as clusters:
        yield Submission(SOLUTION, clusters)


def found(run, expected):
    return [*expected.sent(run), *holdings(run, expected.ends)]


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 6), st.integers(0, 20), st.data())
def test_the_solution_has_no_findings(submission, world, length, data):
    given, root = asked.own_numbers(world, length), data.draw(st.integers(0, world - 1))
    run = submission.run("tree_broadcast", per_rank(given), root, world=world)
    assert found(run, asked.broadcast(world, root)) == []
    run = submission.run("tree_reduce", per_rank(given), root, world=world)
    assert found(run, asked.reduce(world, root)) == []
    run = submission.run("halving_doubling_all_reduce", per_rank(given), world=world)
    assert found(run, asked.both(world)) == []


@pytest.fixture(scope="module")
def right(submission):
    """Halving-doubling among three ranks, of which two are a pair."""
    return submission.run("halving_doubling_all_reduce", per_rank(asked.own_numbers(3, 5)), world=3)


def changed(run, number, **values):
    """The run with other values in one event."""
    events = list(run.events)
    events[number] = dataclasses.replace(events[number], **values)
    return Run(run.world_size, function=run.function, events=events, results=run.results, sources=run.sources)


def numbers_of(run, kind):
    return [number for number, e in enumerate(run.events) if e.kind == kind]


def test_every_message_counts(right):
    for number in numbers_of(right, SEND):
        e = right.events[number]
        other = changed(right, number, peer=3 - e.rank - e.peer)
        assert "halving-doubling sends to rank" in found(other, asked.both(3))[0].message
        assert found(other, asked.both(3))[0].step == e.step
        for at in range(len(e.payload)):
            payload = e.payload.clone()
            payload[at] += 1
            assert found(changed(right, number, payload=payload), asked.both(3))
        events = [e for i, e in enumerate(right.events) if i != number]
        fewer = Run(3, function="f", events=events, results=right.results)
        assert any("is missing" in f.message for f in found(fewer, asked.both(3)))


def test_one_chunk_is_missing_and_two_are(submission):
    run = submission.run("halving_doubling_all_reduce", per_rank(asked.own_numbers(4, 4)), world=4)
    sends = [number for number in numbers_of(run, SEND) if run.events[number].rank == 0]
    for left, missing in ((0, "chunks 2 and 3 in step 1 are missing"), (1, "chunk 1 in step 2 is missing")):
        events = [e for i, e in enumerate(run.events) if i not in sends[left:]]
        fewer = Run(4, function="f", events=events, results=run.results)
        said = f"rank 0 sent {left} message{'s' * (left != 1)}; halving-doubling sends 4"
        assert any(f"{said}: {missing}" in f.message for f in found(fewer, asked.both(4)))


def test_every_number_counts(right):
    for number in numbers_of(right, RETURN):
        (tensor,) = right.events[number].arguments
        for at in range(len(tensor)):
            wrong = tensor.clone()
            wrong[at] += 1
            assert found(changed(right, number, arguments=(wrong,)), asked.both(3))


def test_a_step_is_what_the_record_says(right):
    for rank, parcels in enumerate(asked.both(3).turns.parcels):
        assert [parcel.step for parcel in parcels] == [e.step for e in right.messages(rank)]


def test_whoever_receives_from_another_rank_is_named(right):
    turns = asked.both(3).turns
    assert list(wrong_receives(right, turns, "halving-doubling")) == []
    number = next(n for n in numbers_of(right, RECV) if right.events[n].rank == 2)
    (wrong,) = wrong_receives(changed(right, number, peer=0), turns, "halving-doubling")
    said = "rank 2 receives from rank 0; halving-doubling sends to it from rank 1 there (halving, d = 1)"
    assert wrong.message == said and wrong.line is not None


def test_ranks_of_a_group_are_told_by_their_global_numbers():
    turns = in_turn(asked.down(2, 0), 2)
    assert turns.sources == [[], [(0, "distance 1")]] and turns.parcels[0][0].to == 1


def test_a_deadlock_is_told_by_its_cause(submission, tmp_path):
    text = SOLUTION.read_text().replace(
        "group_src=(root + place - distance)", "group_src=(root + place - 2 * distance)"
    )
    (tmp_path / "collectives.py").write_text(text)
    wrong = Submission(tmp_path / "collectives.py", submission._clusters)
    with pytest.raises(CheckFailed, match="rank 1 receives from rank 1; the tree sends to it from rank 0") as caught:
        asked.test_broadcast(wrong)
    assert caught.value.step == 1


# -- costs -------------------------------------------------------------------------------------------------------------


def test_right_seconds_have_no_findings_and_others_do():
    right = asked.costs(6)
    for key, cost in right.items():
        four = questions(*key)
        answers = [cost.seconds(question) for question in four]
        assert list(wrong_seconds(four, answers, right)) == []
        for place in range(4):
            off = [answer * (1.001 if i == place else 1) for i, answer in enumerate(answers)]
            assert len(list(wrong_seconds(four, off, right))) == 1


@pytest.mark.parametrize("answer", [None, "1", True, [1.0]])
def test_what_is_no_number_is_told(answer):
    question = Question("ring", 6, 1, 1.0, 1.0)
    (said,) = wrong_seconds([question], [answer], asked.costs(6))
    assert said == f"seconds('ring', 6, 1, 1.0, 1.0) returned {answer!r}: return the seconds, a number"


def test_any_of_the_fastest_will_do():
    right = asked.costs(2)  # the ring is halving-doubling then
    question = (2, 1000, 1.0, 1.0)
    assert list(not_the_fastest([question] * 2, ["ring", "halving_doubling"], right)) == []
    tree, none = not_the_fastest([question] * 2, ["tree", None], right)
    assert "they take: ring 1002 s, tree 2002 s, halving_doubling 1002 s" in tree
    assert none.endswith("return one of 'ring', 'tree', 'halving_doubling'")
