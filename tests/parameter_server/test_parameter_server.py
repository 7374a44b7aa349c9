"""Servers and workers on real ranks: the numbers of plain training, exactly the bytes of the formula, a clean end."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
import torch
from jobs import BYTES, batch, small_model, train
from torch.nn.functional import cross_entropy

from dtcourse import Cluster
from dtcourse.parameter_server.policies import Asynchronous, BackupWorkers, BoundedStaleness, Synchronous

STEPS = 6


@pytest.fixture(scope="module")
def cluster():
    """`cluster(world)`: made when it is first asked for, and kept."""
    made = {}
    with ExitStack() as stack:
        yield lambda world: made.get(world) or made.setdefault(world, stack.enter_context(Cluster(world)))


def plain(batches, lr=0.2):
    """One process, plain SGD: the parameters after all batches."""
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for x, y in batches:
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
    return {name: p.detach() for name, p in model.named_parameters()}


def joined(step, workers):
    parts = [batch(step, worker) for worker in workers]
    return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


def same(a, b, tolerance=1e-12):
    return a.keys() == b.keys() and all(torch.allclose(a[k], b[k], rtol=0, atol=tolerance) for k in a)


def merged(run, servers):
    return {name: p for shard in run.results[:servers] for name, p in shard.items()}


@pytest.mark.parametrize("servers", [1, 2, 3])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_synchronous_is_training_on_the_joined_batch(cluster, servers, workers):
    run = cluster(servers + workers).run(train, Synchronous(), servers, STEPS)
    expected = plain(joined(step, range(servers, servers + workers)) for step in range(STEPS))
    got = merged(run, servers)
    assert same({name: got[name] for name in expected}, expected)
    assert all(same(result, expected) for result in run.results[servers:])


@pytest.mark.parametrize("policy", [Synchronous(), Asynchronous(), BoundedStaleness(1), BackupWorkers(2)], ids=str)
@pytest.mark.parametrize("servers", [1, 2])
def test_bytes_are_those_of_the_formula(cluster, policy, servers):
    run = cluster(servers + 3).run(train, policy, servers, STEPS)
    pushes = [len(run.marks("loss", rank)) for rank in range(servers, servers + 3)]
    into, out = run.traffic_matrix()[servers:, :servers].sum(), run.traffic_matrix()[:servers, servers:].sum()
    assert (into, out) == (sum(pushes) * BYTES, (sum(pushes) + 3) * BYTES)
    if not isinstance(policy, BackupWorkers):
        assert pushes == [STEPS] * 3
