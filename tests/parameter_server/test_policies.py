"""What each policy promises, on real ranks: whose gradient counts, who may go on, how stale a gradient can be."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs import BYTES, LR, merged, name_of, pauses, plain, same, small_model, train

from dtcourse import RankError
from dtcourse.parameter_server.policies import (
    Asynchronous,
    BackupWorkers,
    BoundedStaleness,
    DelayCompensation,
    Synchronous,
)
from dtcourse.parameter_server.shards import shards

UNEVEN = [13, 13, 13, 13, 7]  # the last batch is smaller, and no number of workers divides 13


def of_server(run, server, *names):
    """The marks of a server, in the order in which they happened."""
    return sorted((e for name in names for e in run.marks(name, server)), key=lambda e: e.index)


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 5])
def test_synchronous_is_training_on_the_joined_batch(cluster, workers):
    run = cluster(1 + workers).run(train, Synchronous(), 1, UNEVEN)
    expected, _ = plain(UNEVEN)
    assert all(same(result, expected) for result in run.results)


@pytest.mark.parametrize("servers", [2, 3])
def test_synchronous_on_several_servers(cluster, servers):
    run = cluster(servers + 3).run(train, Synchronous(), servers, UNEVEN, optimizer=torch.optim.Adam, lr=0.01)
    expected, _ = plain(UNEVEN, torch.optim.Adam, lr=0.01)
    assert same({name: merged(run, servers)[name] for name in expected}, expected)
    assert all(same(result, expected) for result in run.results[servers:])


def test_asynchronous_with_one_worker_is_plain_sgd_exactly(cluster):
    run = cluster(2).run(train, Asynchronous(), 1, UNEVEN)
    expected, losses = plain(UNEVEN)
    assert all(torch.equal(run.results[0][name], expected[name]) for name in expected)
    assert [e.labels["value"] for e in run.marks("loss")] == losses


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_mean_staleness_is_the_number_of_other_workers(cluster, workers):
    steps = 40
    pause = lambda rank, step: 0.004  # noqa: E731
    run = cluster(1 + workers).run(train, Asynchronous(), 1, [2 * workers] * steps, pause=pause)
    updates = of_server(run, 0, "update")
    versions = {w: [e.labels["version"] for e in updates if e.labels["worker"] == w] for w in range(1, 1 + workers)}
    began, ended = max(v[0] for v in versions.values()), min(v[-1] for v in versions.values())
    steady = [e.labels["staleness"] for e in updates if began + workers <= e.labels["version"] <= ended]
    assert len(steady) > workers * steps / 3
    assert abs(sum(steady) / len(steady) - (workers - 1)) < workers**2 / len(steady) + 0.1
    for own in versions.values():  # the reply to a push is the next pull: nothing lies between them
        stale = [e.labels["staleness"] for e in updates if e.labels["version"] in own[1:]]
        assert stale == [after - before - 1 for before, after in pairwise(own)]


@settings(max_examples=25, deadline=None)
@given(s=st.integers(0, 3), workers=st.integers(1, 4), seed=st.integers(0, 1000), compensates=st.booleans())
def test_bounded_staleness_is_never_exceeded(cluster, s, workers, seed, compensates):
    steps = 8
    policy = DelayCompensation(0.1, on=BoundedStaleness(s)) if compensates else BoundedStaleness(s)
    run = cluster(1 + workers).run(train, policy, 1, [2 * workers] * steps, pause=pauses(seed))
    completed = dict.fromkeys(range(1, 1 + workers), 0)
    for event in of_server(run, 0, "update", "begin"):
        worker, step = event.labels["worker"], event.labels["step"]
        assert step == completed[worker]
        if event.op == "begin" and step < steps:
            assert min(completed.values()) >= step - s
        if event.op == "update":
            assert event.labels["staleness"] <= (workers - 1) * (2 * s + 1)
            completed[worker] += 1
    assert set(completed.values()) == {steps}


@pytest.mark.parametrize("s", [0, 1, 3])
def test_a_fast_worker_gets_exactly_s_steps_ahead(cluster, s):
    pause = lambda rank, step: 0.05 * (rank == 1)  # noqa: E731
    run = cluster(3).run(train, BoundedStaleness(s), 1, [4] * 6, pause=pause)
    leads = [e.labels["step"] - e.labels["slowest"] for e in run.marks("begin", 0) if e.labels["worker"] == 2]
    assert max(leads) == s


@settings(max_examples=15, deadline=None)
@given(k=st.integers(1, 4), servers=st.integers(1, 2), seed=st.integers(0, 1000))
def test_exactly_the_first_k_gradients_of_a_step_count(cluster, k, servers, seed):
    steps = 6
    run = cluster(4 + servers).run(train, BackupWorkers(k), servers, [8] * steps, pause=pauses(seed))
    for server in range(servers):
        applied = Counter(e.labels["version"] for e in run.marks("update", server))
        last = max(applied)  # the workers stop by the steps of server 0; another one may have made more
        assert applied == dict.fromkeys(range(1, last + 1), k) and (server or last == steps)
        version = 0
        for event in of_server(run, server, "update", "dropped"):
            if event.op == "update":
                version = event.labels["version"]
                assert (event.labels["staleness"], event.labels["step"]) == (0, version - 1)
            else:
                too_few = server and event.labels["step"] == last == version  # of a step that server 0 has not made
                assert event.labels["step"] < version or too_few
        dropped = len(run.marks("dropped", server))
        assert dropped + k * last == len(run.marks("loss"))


def test_with_fewer_than_k_left_the_training_is_over(cluster):
    """Workers that leave one after the other: what the last one still brings is dropped, and nobody waits."""
    from leaving import leave_early

    run = cluster(4).run(leave_early, BackupWorkers(2))
    assert set(Counter(e.labels["version"] for e in run.marks("update", 0)).values()) == {2}
    assert run.marks("dropped", 0)


@pytest.mark.parametrize("adaptive", [False, True])
def test_delay_compensation_is_its_formula_on_the_recorded_pulls_and_pushes(cluster, adaptive):
    lambda_, m, steps = 2.0, 0.95, 8
    policy = DelayCompensation(lambda_, adaptive=adaptive, momentum=m)
    run = cluster(4).run(train, policy, 1, [6] * steps, watch=True, pause=pauses(1))
    pulls = {w: [e.payload for e in run.messages(0) if e.peer == w] for w in (1, 2, 3)}
    pushes = {w: [e.payload for e in run.messages(w)] for w in (1, 2, 3)}
    w, mean_square, stale = shards(small_model(), 1)[0].flat(), 0.0, 0
    for event in of_server(run, 0, "update"):
        worker, step = event.labels["worker"], event.labels["step"]
        g, w_bak = pushes[worker][step], pulls[worker][step]
        mean_square = m * mean_square + (1 - m) * g**2
        strength = lambda_ / (mean_square + 1e-7) ** 0.5 if adaptive else lambda_
        w = w - LR * (g + strength * g * g * (w - w_bak))
        stale += not torch.equal(w, w_bak)
        nxt = pulls[worker][step + 1]  # the reply to this push
        assert torch.allclose(nxt, w, rtol=0, atol=1e-12)
    assert stale > steps
    assert torch.allclose(torch.cat([p.flatten() for p in run.results[0].values()]), w, rtol=0, atol=1e-12)


@pytest.mark.parametrize("policy", [Synchronous(), Asynchronous(), BoundedStaleness(1), BackupWorkers(2)], ids=name_of)
@pytest.mark.parametrize("servers", [1, 2, 3])
def test_bytes_are_those_of_the_formula(cluster, policy, servers):
    steps, workers = 5, 3
    run = cluster(servers + workers).run(train, policy, servers, [6] * steps)
    pushes = len(run.marks("loss"))
    for server, shard in enumerate(shards(small_model(), servers)):
        size = shard.flat().numel() * 8
        assert run.traffic_matrix()[:, server].sum() == pushes * size
        assert run.bytes_sent(server) == (pushes + workers) * size
    if not isinstance(policy, BackupWorkers):
        assert pushes == steps * workers
        assert run.traffic_matrix()[servers:, :servers].sum() == steps * workers * BYTES


def test_workers_go_to_their_first_server_one_each(cluster):
    run = cluster(3 + 4).run(train, Synchronous(), 3, [8])
    pushed = {worker: [e.peer for e in run.messages(worker)] for worker in range(3, 7)}
    pulled = {worker: [e.peer for e in run.receives(worker)] for worker in range(3, 7)}
    assert pushed == {3: [0, 1, 2], 4: [1, 2, 0], 5: [2, 0, 1], 6: [0, 1, 2]}
    assert pulled == {worker: 2 * servers for worker, servers in pushed.items()}


def test_what_makes_no_sense_is_refused(cluster):
    with pytest.raises(RankError, match="BackupWorkers needs more workers than 1"):
        cluster(2).run(train, BackupWorkers(2), 1, UNEVEN)
    for make in (
        lambda: BackupWorkers(0),
        lambda: BoundedStaleness(-1),
        lambda: DelayCompensation(1, on=Synchronous()),
    ):
        with pytest.raises(ValueError):
            make()
