"""Shares of the samples, the broadcast at the start, the average after the backward pass; the plain way."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

from dtcourse import RankError, per_rank
from dtcourse.collectives.ring import ring_all_reduce
from dtcourse.collectives.root import root_all_reduce
from dtcourse.data_parallel.replicas import average_gradients, broadcast_parameters
from dtcourse.data_parallel.shares import joined, share_of

BACKENDS = ["shared_memory", "gloo"]


@pytest.mark.parametrize("samples", [[4, 4, 4], [6, 0, 2], [0, 0, 1]])
def test_shares(cluster_of, samples):
    run = cluster_of(3).run(share_of, per_rank(samples))
    assert run.results == [n / sum(samples) for n in samples]
    assert run.bytes_sent(0) == 0  # control


@pytest.mark.parametrize(("samples", "why"), [([0, 0, 0], "no rank has a sample"), ([-1, -1, -1], "-1 samples")])
def test_shares_of_nothing(cluster_of, samples, why):
    with pytest.raises(RankError, match=why):
        cluster_of(3).run(share_of, per_rank(samples))


def test_joined(cluster_of):
    """Ranks with 3, 0 and 1 batches, of 2 samples each, the very last one of 1."""
    batches = [[torch.ones(2), torch.ones(2), torch.ones(1)], [], [(torch.ones(2, 5), torch.ones(2))]]
    run = cluster_of(3).run(
        lambda own: [(b is not None, share) for b, share in joined(own)] + [next(joined(own), None) is None],
        per_rank(batches),
    )
    assert run.results == [
        [(True, 0.5), (True, 1.0), (True, 1.0), False],
        [(False, 0.0), (False, 0.0), (False, 0.0), False],
        [(True, 0.5), (False, 0.0), (False, 0.0), False],
    ]


def test_an_empty_batch_is_refused(cluster_of):
    with pytest.raises(RankError, match="a batch has no samples: leave it out"):
        cluster_of(3).run(lambda: list(joined([torch.ones(0, 3)])))


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_broadcast_brings_parameters_and_buffers_of_any_layout(cluster_of, backend):
    def function(root):
        torch.manual_seed(dist.get_rank())
        model = nn.Sequential(nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3))
        model(torch.randn(4, 2, 3, 3))  # the buffers differ, too
        model.to(memory_format=torch.channels_last)
        kept = list(model.parameters())
        broadcast_parameters(model, root)
        assert all(a is b for a, b in zip(kept, model.parameters(), strict=True))
        return list(model.state_dict().values())

    first, second, third = cluster_of(3, backend).run(function, 1).results
    assert all(torch.equal(a, b) and torch.equal(b, c) for a, b, c in zip(first, second, third, strict=True))
    torch.manual_seed(1)
    assert torch.equal(first[0], nn.Conv2d(2, 3, 2).weight)


def averaged(all_reduce, shares):
    """Gradients after the average: two of float64, one of float32; one not used by rank 1, one by nobody."""
    rank = dist.get_rank()
    weight, bias, narrow, unused, frozen = (nn.Parameter(torch.zeros(n)) for n in (3, 2, 1, 4, 1))
    weight.data, bias.data = weight.data.double(), bias.data.double()
    frozen.requires_grad_(False)
    weight.grad = torch.full((3,), rank + 1.0).double()
    if rank != 1:
        bias.grad = torch.tensor([1.0, float("inf") if shares and shares[rank] == 0 else 2.0]).double()
    narrow.grad = torch.tensor([10.0 * rank])
    parameters = [weight, bias, weight, narrow, unused, frozen]
    average_gradients(iter(parameters), all_reduce, shares and shares[rank])
    return [p.grad for p in parameters]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("all_reduce", [ring_all_reduce, root_all_reduce, dist.all_reduce])
@pytest.mark.parametrize("shares", [None, [0.0, 0.75, 0.25]])
def test_the_average(cluster_of, backend, all_reduce, shares):
    run = cluster_of(3, backend).run(averaged, all_reduce, shares)
    a, b, c = shares or [1 / 3] * 3
    for weight, bias, again, narrow, unused, frozen in run.results:
        assert torch.allclose(weight, torch.full((3,), a + 2 * b + 3 * c).double()) and torch.equal(again, weight)
        assert torch.allclose(bias, torch.tensor([a + c, 2 * (a + c)]).double())
        assert torch.allclose(narrow, torch.tensor([10 * (b + 2 * c)]))
        assert unused is None and frozen is None
    if all_reduce is ring_all_reduce:  # 5 + 2 of 8 bytes, and 1 + 4 + 2 of 4 bytes, each cut into 3, 2, 2
        for size in (8, 4):
            chunks = [3, 2, 2]
            sent = [2 * 7 - chunks[(j + 1) % 3] - chunks[(j + 2) % 3] for j in range(3)]
            by_size = [sum(e.bytes for e in run.messages(j) if e.dtype == f"float{8 * size}") for j in range(3)]
            assert by_size == [size * n for n in sent]


def test_a_share_that_is_none_is_refused(cluster_of):
    with pytest.raises(RankError, match=r"share=-0\.5: a rank's share .* between 0 and 1"):
        cluster_of(2).run(averaged, root_all_reduce, [-0.5, 1.5])


def test_a_sparse_gradient_is_refused(cluster_of):
    def function():
        table = nn.Embedding(4, 2, sparse=True)
        table(torch.tensor([1])).sum().backward()
        average_gradients(table.parameters(), ring_all_reduce)

    with pytest.raises(RankError, match="sparse=False"):
        cluster_of(3).run(function)
