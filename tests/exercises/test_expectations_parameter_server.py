"""What the exercise `parameter_server` expects: its solution meets it, and no message, number or shard may change."""

import dataclasses
import itertools

import pytest
import test_parameter_server as asked  # what the exercise asks for
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from dtcourse import Run, per_rank
from dtcourse.events import RECV, RETURN, SEND
from dtcourse.grading import suite
from dtcourse.grading.submission import Clusters, Submission
from dtcourse.parameter_server.shards import assign

SOLUTION = suite.course_folder() / "solutions" / "parameter_server.py"
WORLD, LENGTH = 3, 6
WORKERS = (1, 2)


@pytest.fixture(scope="module")
def submission():
    with Clusters() as clusters:
        yield Submission(SOLUTION, clusters)


@pytest.fixture(scope="module")
def worked(submission):
    given = asked.for_workers(WORLD, LENGTH)
    return submission.run("worker_step", *given, world=WORLD, around=asked.with_a_given_server)


@pytest.fixture(scope="module")
def served(submission):
    given = asked.for_server(WORLD, LENGTH)
    return submission.run("server_step", *given, world=WORLD, around=asked.with_given_workers)


@pytest.fixture(scope="module")
def trained(submission):
    starts = per_rank([asked.parameters_of(rank, asked.WEIGHTS) for rank in range(WORLD)])
    both = ("server_step", "worker_step")
    batches = per_rank([[], *asked.shares(len(WORKERS))])
    return submission.run(both, starts, batches, world=WORLD, around=asked.training)


def of_workers(run):
    return [*asked.workers_send(run, LENGTH), *asked.workers_hold(run, LENGTH)]


def of_server(run):
    samples = asked.samples_of(WORKERS)
    return [*asked.server_sends(run, samples, LENGTH), *asked.server_holds(run, samples, LENGTH)]


def of_training(run):
    return list(asked.like_one_process(run, asked.shares(len(WORKERS))))


# -- a right record, changed in one place ------------------------------------------------------------------------------


def changed(run, number, **values):
    """The run with other values in one event."""
    events = list(run.events)
    events[number] = dataclasses.replace(events[number], **values)
    return with_events(run, events)


def with_events(run, events):
    return Run(run.world_size, function=run.function, events=events, results=run.results, sources=run.sources)


def numbers_of(run, kind, ranks):
    return [number for number, e in enumerate(run.events) if e.kind == kind and e.rank in ranks]


CASES = [("worked", of_workers, WORKERS), ("served", of_server, (0,)), ("trained", of_training, range(WORLD))]


@pytest.fixture(params=CASES, ids=[name for name, _, _ in CASES])
def case(request):
    """A run, what is found in it, and the ranks that ran what the exercise asks for."""
    name, findings, ranks = request.param
    return request.getfixturevalue(name), findings, ranks


def test_what_is_right_has_no_findings(case):
    run, findings, _ = case
    assert findings(run) == []


def test_every_number_of_every_message_counts(case):
    run, findings, ranks = case
    for number in numbers_of(run, SEND, ranks):
        e = run.events[number]
        for at in range(e.payload.numel()):
            payload = e.payload.clone()
            payload[at] += 1
            assert findings(changed(run, number, payload=payload)), (number, at)
        assert findings(changed(run, number, payload=e.payload.float()))
        assert findings(changed(run, number, payload=e.payload[:0]))


def test_every_message_has_to_go_where_it_goes(case):
    run, findings, ranks = case
    for number in numbers_of(run, SEND, ranks):
        e = run.events[number]
        astray = [f.message for f in findings(changed(run, number, peer=3 - e.peer - e.rank))]
        assert astray and (e.rank == 0 or f"rank {e.rank} sent to rank {3 - e.rank}; a worker does not" in astray)
        said = [f.message for f in findings(with_events(run, [e for i, e in enumerate(run.events) if i != number]))]
        assert any("is missing" in message for message in said)
        twice = findings(with_events(run, [*run.events[: number + 1], *run.events[number:]]))
        assert any("too many" in finding.message for finding in twice)


def test_every_number_that_is_left_counts(case):
    run, findings, ranks = case
    for number in numbers_of(run, RETURN, ranks):
        (whole, *others) = run.events[number].arguments
        for at in range(len(whole)):
            wrong = whole.clone()
            wrong[at] += 1
            (found,) = findings(changed(run, number, arguments=(wrong, *others)))
            assert " ends with " in found.message


def test_the_server_has_to_wait_for_everybody(served):
    for number in numbers_of(served, RECV, (0,)):
        e = served.events[number]
        late = max(event.posted for event in served.events) + 1
        answers = served.messages(0)
        if e.bytes > 8:  # a gradient
            found = of_server(changed(served, number, posted=late, ended=late))[0].message
            assert f"before it had received the gradient of rank {e.peer}" in found
            found = of_server(changed(served, number, ended=late))[0].message
            assert f"rank {answers[0].peer} parameters before it had waited for the gradient of rank {e.peer}" in found


def test_a_training_of_stale_gradients_is_seen(trained):
    number = [n for n in numbers_of(trained, SEND, (1,)) if trained.events[n].bytes > 8][2]
    x, y = asked.shares(len(WORKERS))[0][2]
    stale = asked.error_slope(asked.alone(asked.shares(len(WORKERS)))[1], x, y)
    (found,) = of_training(changed(trained, number, payload=stale))
    assert found.message == "rank 1 sent rank 0 g(w[1]) as its gradient in round 3; expected g(w[2])"


# -- shards ------------------------------------------------------------------------------------------------------------


def shards_found(shards, sizes):
    run = Run(2, results=[shards] * 2)
    return list(asked.complete(run, sizes, len(shards))) or list(asked.balanced(run, sizes, len(shards)))


@given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.data())
def test_the_shards_of_the_course_have_no_findings(sizes, data):
    servers = data.draw(st.integers(1, len(sizes)))
    assert shards_found(assign(sizes, servers), sizes) == []


@settings(deadline=None)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=7), st.integers(1, 3))
def test_the_best_shards_pass_and_the_rule_is_within_4_3_of_them(sizes, servers):
    owners = itertools.product(range(servers), repeat=len(sizes))
    every = ([[i for i, owner in enumerate(way) if owner == s] for s in range(servers)] for way in owners)
    best = min(every, key=lambda shards: max(asked.loads(shards, sizes)))
    assert shards_found(best, sizes) == []
    fullest = max(asked.loads(asked.largest_first(sizes, servers), sizes))
    assert 3 * fullest <= 4 * max(asked.loads(best, sizes))


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 2)), min_size=1, max_size=8))
def test_one_byte_more_than_the_rule_gives_is_too_much(sizes_and_owners):
    sizes = [size for size, _ in sizes_and_owners]
    shards = [[i for i, (_, owner) in enumerate(sizes_and_owners) if owner == server] for server in range(3)]
    fullest = max(asked.loads(asked.largest_first(sizes, 3), sizes))
    assert bool(shards_found(shards, sizes)) == (max(asked.loads(shards, sizes)) > fullest)


@pytest.mark.parametrize(
    ("shards", "said"),
    [
        ([[1, 2, 0], [3]], "parameter 4 goes to no server: it has to go to exactly one"),
        ([[1, 2, 0], [3, 4, 0]], "parameter 0 goes to servers 0 and 1: it has to go to exactly one"),
        ([[1, 2, 0], [3, 4, 5]], "server 1 takes parameter 5, and the parameters are 0 to 4"),
        ([[1, 2, 0], [3, "4"]], "returned [[1, 2, 0], [3, '4']]; it has to be a list of 2 lists"),
        ([1, 2], "returned [1, 2]; it has to be a list of 2 lists, one for each server"),
        (
            [[0, 2, 3], [1, 4]],
            "server 1 gets 100 of 180 bytes; with the largest first none has over 90. This looks like going",
        ),
    ],
)
def test_what_is_wrong_with_shards_is_said(shards, said):
    assert said in shards_found(shards, asked.EXAMPLE)[0].message


def test_the_table_of_the_docstring(submission):
    run = submission.run("assign_shards", asked.EXAMPLE, 2, world=1)
    assert run.results == [[[1, 2, 0], [3, 4]]]


def test_the_example_of_the_docstring(submission):
    def around(server_step, parameters, gradient, samples):
        if dist.get_rank() == 0:
            server_step(parameters, (1, 2), 1.0)
            return
        for tensor in (torch.tensor([samples]), gradient):
            dist.send(tensor, 0)
        dist.recv(parameters, 0)

    begin, gradients = [torch.tensor([10.0])] * 3, [torch.tensor([g]) for g in (0.0, 4.0, 0.0)]
    run = submission.run(
        "server_step", per_rank(begin), per_rank(gradients), per_rank((0, 1, 3)), world=3, around=around
    )
    assert [e.payload.item() for e in run.messages(0)] == [9.0, 9.0]
