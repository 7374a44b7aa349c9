"""Expectations: the course's own ring meets them whatever the sizes, and no single message or number may change."""

import dataclasses
import re

import pytest
import test_ring as asked  # what the exercise asks for
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dtcourse import Run, per_rank, provenance
from dtcourse.collectives import ring
from dtcourse.events import RECV, RETURN, SEND
from dtcourse.grading.findings import CheckFailed, Finding, fail_on
from dtcourse.grading.messages import messages, partners, sent_bytes
from dtcourse.grading.submission import Clusters, Submission
from dtcourse.grading.values import holdings, in_place, tensors


@pytest.fixture(scope="module")
def run():
    with Clusters() as clusters:
        submission = Submission(ring.__file__, clusters)

        def run(name, world, length):
            make = asked.one_sum_each if name == "ring_all_gather" else asked.own_numbers
            return submission.run(name, per_rank(make(world, length)), world=world)

        yield run


HALVES = {
    "ring_reduce_scatter": (asked.reduce_scatter, asked.one_chunk),
    "ring_all_gather": (asked.all_gather, asked.all_chunks),
    "ring_all_reduce": (asked.all_reduce, asked.all_chunks),
}


def findings(run, name):
    schedule, left = HALVES[name]
    world = run.world_size
    return [*messages(run, schedule(world), "the ring"), *holdings(run, left(world))]


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(sorted(HALVES)), st.integers(1, 6), st.integers(0, 40))
def test_the_ring_of_the_course_has_no_findings(run, name, world, length):
    assert findings(run(name, world, length), name) == []


# -- a right record, changed in one place ------------------------------------------------------------------------------


def changed(run, number, **values):
    """The run with other values in one event."""
    events = list(run.events)
    events[number] = dataclasses.replace(events[number], **values)
    return Run(run.world_size, function=run.function, events=events, results=run.results, sources=run.sources)


@pytest.fixture(scope="module")
def right(run):
    return run("ring_all_reduce", 3, 7)


def numbers_of(run, kind):
    return [number for number, e in enumerate(run.events) if e.kind == kind]


def test_every_message_counts(right):
    for number in numbers_of(right, SEND):
        e = right.events[number]
        other_way = changed(right, number, peer=(e.rank - 1) % 3)
        assert "the ring sends to rank" in findings(other_way, "ring_all_reduce")[0].message
        for at in range(len(e.payload)):
            payload = e.payload.clone()
            payload[at] += 1
            assert findings(changed(right, number, payload=payload), "ring_all_reduce"), (number, at)
        shorter = changed(right, number, payload=e.payload[:-1], bytes=e.bytes - 8)
        assert findings(shorter, "ring_all_reduce")


def test_every_message_has_to_be_there(right):
    for number in numbers_of(right, SEND):
        events = [e for i, e in enumerate(right.events) if i != number]
        fewer = Run(3, function="f", events=events, results=right.results)
        found = findings(fewer, "ring_all_reduce")
        assert any("sent 3 messages; the ring sends 4" in f.message for f in found)


def test_a_receive_has_to_be_waited_for(right):
    first = next(n for n in numbers_of(right, RECV) if right.events[n].rank == 1)
    (found,) = findings(changed(right, first, ended=None, wait_from=None), "ring_all_reduce")
    assert found.message.startswith("rank 1 used what it receives in step 1 before waiting for it: call .wait()")


def test_a_wait_that_comes_too_late_is_told(right):
    first = next(n for n in numbers_of(right, RECV) if right.events[n].rank == 1)
    late = max(e.posted for e in right.events)
    run = changed(right, first, ended=late + 2, wait_from=late + 1)
    assert findings(run, "ring_all_reduce") == []  # what was sent was right all the same
    number = next(n for n in numbers_of(right, SEND) if (e := right.events[n]).rank == 1 and e.step == 2)
    mixed = right.events[number].payload.clone()
    mixed[0] -= 1
    (found,) = findings(changed(run, number, payload=mixed), "ring_all_reduce")
    assert "rank 1 had not waited yet for what it receives before" in found.message


def test_every_number_counts(right):
    for number in numbers_of(right, RETURN):
        (tensor,) = right.events[number].arguments
        for at in range(len(tensor)):
            wrong = tensor.clone()
            wrong[at] += 1
            found = findings(changed(right, number, arguments=(wrong,)), "ring_all_reduce")
            assert re.search(rf"position {at}\b", found[0].message), found


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (lambda whole: whole // 3, "ends with the average in chunk 0; it has to be the sum of all ranks"),
        (
            lambda whole: provenance(3, 0, 7),
            "ends with the tensor that it began with; chunk 0 has to be the sum of all",
        ),
        (
            lambda whole: whole + provenance(3, 1, 7),
            "the sum of all ranks (rank 1 counted twice) in chunk 0, position 0",
        ),
        (lambda whole: whole - provenance(3, 1, 7), "the sum of ranks 0 and 2 in chunk 0, position 0; it has to be"),
        (lambda whole: whole.roll(-1), "numbers of position 1 at position 0 (chunk 0)"),
        (lambda whole: torch.zeros_like(whole), "position 0 (chunk 0), which no adding up of the ranks' tensors gives"),
        (lambda whole: whole[:5], "rank 0 made torch.int64 (5,) of its tensor, which was torch.int64 (7,)"),
    ],
)
def test_wrong_numbers_are_explained(right, value, said):
    number = next(i for i in numbers_of(right, RETURN) if right.events[i].rank == 0)
    whole = right.events[number].arguments[0]
    found = list(holdings(changed(right, number, arguments=(value(whole),)), asked.all_chunks(3)))
    assert said in found[0].message and found[0].step == 4


def test_what_is_returned_is_found(right):
    returned = Run(3, function="f", events=right.events, results=[None, torch.ones(1), None])
    assert [f.rank for f in in_place(returned)] == [1]


def test_bytes_and_partners(right):
    assert list(sent_bytes(right, [right.bytes_sent(r) for r in range(3)], [""] * 3, "the ring")) == []
    (found,) = sent_bytes(right, [1, *(right.bytes_sent(r) for r in (1, 2))], ["S", "", ""], "the ring")
    assert found.message == f"rank 0 sent {right.bytes_sent(0)} bytes in all; the ring sends S = 1"
    assert list(partners(right, [1, 2, 0], "the ring")) == []
    assert len(list(partners(right, [1, 2, 1], "the ring"))) == 4


def test_tensors_to_a_tolerance(right):
    whole = sum(asked.own_numbers(3, 7))
    assert list(tensors(right, [whole] * 3, 1e-9)) == []
    (found,) = tensors(right, [whole, whole + 1, whole], 1e-9)
    assert found.message.startswith("rank 1 ends with ")


# -- how findings are told ---------------------------------------------------------------------------------------------


def test_the_earliest_finding_speaks(right):
    line = right.messages()[0].line
    found = [Finding("late", 3, 0), Finding("rank 1 is early", 1, 1, line), Finding("so is rank 2", 1, 2)]
    with pytest.raises(CheckFailed) as caught:
        fail_on(right, found)
    first, at, also = str(caught.value).splitlines()
    assert first == "ring_all_reduce on 3 ranks, 7 elements each: rank 1 is early."
    assert at.startswith(f"  at {line.file}, line {line.number}:  ") and "(rank 2:" in also
    assert (caught.value.step, caught.value.run) == (1, right)


def test_no_finding_no_failure(right):
    fail_on(right, [])
