"""A layer whose weights are cut among the ranks is the undivided layer, for two all-reduces each way."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.distributed as dist
from divided_models import FEATURES, HEADS, block, same, tokens
from torch import nn

from dtcourse import MismatchError, RankError
from dtcourse.events import COLLECTIVE, mark
from dtcourse.model_parallel.tensors import (
    ColumnParallelLinear,
    RowParallelLinear,
    copy_in,
    parallel_attention,
    parallel_block,
    parallel_mlp,
    share,
    sum_out,
)
from dtcourse.model_parallel.transformer import MLP, Attention

WORLDS = [1, 2, 3, 4]  # 5 heads and 80 hidden features: cut unevenly by 2, 3 and 4, and by 3
BYTES = tokens().numel() * 8  # of one all-reduce


def weighted(outputs: torch.Tensor) -> torch.Tensor:
    """A loss in which every output counts differently."""
    return (outputs * torch.linspace(-1, 2, outputs.numel(), dtype=torch.double).view_as(outputs)).sum()


def forward_and_backward(model, x, needs_gradient=True):
    x = x.requires_grad_(needs_gradient)
    outputs = model(x)
    mark("half time")
    weighted(outputs).backward()
    return outputs.detach(), x.grad, {name: p.grad for name, p in model.named_parameters()}


def all_reduces(run, rank):
    """Those of a rank before and after the mark between forward and backward; nothing else was sent."""
    events = [e for e in run.events if e.rank == rank]
    (half,) = run.marks("half time", rank)
    collectives = [e for e in events if e.kind == COLLECTIVE]
    assert {e.op for e in collectives} <= {"all_reduce"} and not run.messages()
    return [[e.bytes for e in collectives if (e.index < half.index) == forward] for forward in (True, False)]


def heads_of(rank, world, unit):
    """The rows of a rank, by another way than the library's: units dealt out one by one."""
    units = torch.arange(HEADS * unit).view(HEADS, unit)
    return torch.cat(list(units.tensor_split(world)[rank]))


def cut(name, gradient, rank, world):
    """What a rank has to have of the gradient of the undivided block."""
    if name.startswith("attention.qkv"):
        return gradient[heads_of(rank, world, 3 * FEATURES // HEADS)]
    if name == "attention.out.weight":
        return gradient[:, heads_of(rank, world, FEATURES // HEADS)]
    if name.startswith("mlp.up"):
        return gradient.tensor_split(world)[rank]
    if name == "mlp.down.weight":
        return gradient.tensor_split(world, 1)[rank]
    return gradient  # on all ranks


@pytest.mark.parametrize("world", WORLDS)
def test_a_block_is_the_undivided_block_for_two_all_reduces_each_way(cluster, world):
    run = cluster(world).run(lambda: forward_and_backward(parallel_block(block()), tokens()))
    outputs, dx, expected = forward_and_backward(block(), tokens())
    for rank, (ours, our_dx, got) in enumerate(run.results):
        assert same([ours, our_dx], [outputs, dx])
        assert same(list(got.values()), [cut(name, g, rank, world) for name, g in expected.items()])
        assert list(got) == list(expected)
        assert all_reduces(run, rank) == [[BYTES] * 2, [BYTES] * 2]


def test_two_layers_cost_twice_as_much(cluster):
    def two():
        return forward_and_backward(nn.Sequential(parallel_block(block()), parallel_block(block())), tokens())

    run = cluster(2).run(two)
    outputs, dx, _ = forward_and_backward(nn.Sequential(block(), block()), tokens())
    assert same(list(run.results[1][:2]), [outputs, dx])
    assert all_reduces(run, 0) == all_reduces(run, 1) == [[BYTES] * 4, [BYTES] * 4]


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("part", ["mlp", "attention"])
def test_the_parts_of_a_block(cluster, world, part):
    parallel = {"mlp": parallel_mlp, "attention": parallel_attention}[part]
    run = cluster(world).run(lambda: forward_and_backward(parallel(getattr(block(), part)), tokens()))
    outputs, dx, _ = forward_and_backward(getattr(block(), part), tokens())
    assert all(same([ours, our_dx], [outputs, dx]) for ours, our_dx, _ in run.results)
    assert all_reduces(run, 0) == [[BYTES], [BYTES]]


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("bias", [True, False])
def test_the_linear_layers(cluster, world, bias):
    def whole():
        torch.manual_seed(5)
        return nn.Sequential(nn.Linear(FEATURES, 7, bias=bias), nn.Linear(7, 2, bias=bias)).double()

    def parted():
        first, second = whole()
        return forward_and_backward(nn.Sequential(ColumnParallelLinear(first), RowParallelLinear(second)), tokens())

    outputs, dx, expected = forward_and_backward(whole(), tokens())
    for rank, (ours, our_dx, got) in enumerate(cluster(world).run(parted).results):
        assert same([ours, our_dx], [outputs, dx])
        assert same([got["0.weight"]], [expected["0.weight"].tensor_split(world)[rank]])
        assert same([got["1.weight"]], [expected["1.weight"].tensor_split(world, 1)[rank]])


def test_samples_that_need_no_gradient_cost_no_all_reduce_back(cluster):
    run = cluster(2).run(lambda: forward_and_backward(parallel_mlp(block().mlp), tokens(), needs_gradient=False))
    assert all_reduces(run, 0) == [[BYTES], []]


def test_the_two_functions_alone(cluster):
    def functions():
        a = torch.full((2, 3), float(dist.get_rank() + 1)).requires_grad_()
        b = torch.ones(3, 2).t().requires_grad_()  # strided
        summed, copied = sum_out(a), copy_in(b)
        (summed + (dist.get_rank() + 1) * copied).sum().backward()  # whose gradient comes expanded, too
        return summed.detach(), a.grad, copied.detach(), b.grad, a.detach()

    for rank, (summed, da, copied, db, a) in enumerate(cluster(3).run(functions).results):
        assert torch.equal(summed, torch.full((2, 3), 6.0)) and torch.equal(da, torch.ones(2, 3))
        assert torch.equal(copied, torch.ones(2, 3)) and torch.equal(db, torch.full((2, 3), 6.0))
        assert torch.equal(a, torch.full((2, 3), rank + 1.0))  # not summed in place


def test_training_keeps_what_is_on_all_ranks_the_same(cluster):
    def train(cut=lambda block: block):
        model = cut(block())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(5):
            optimizer.zero_grad()
            model(tokens()).square().mean().backward()
            optimizer.step()
        on_all = [model.attention_norm, model.mlp_norm, model.attention.out, model.mlp.down]
        return [p.detach() for module in on_all for p in (module.bias, module.weight) if p.dim() == 1]

    expected, before = train(), block()
    assert len(expected) == 6 and not torch.allclose(expected[0], before.attention_norm.bias, atol=1e-3)
    assert all(same(ours, expected) for ours in cluster(3).run(lambda: train(parallel_block)).results)


def test_in_a_subgroup(cluster):
    def job():
        group = dist.new_group([0, 2, 3])
        if dist.get_rank() == 1:
            return None
        return forward_and_backward(parallel_block(block(), group), tokens())[:2]

    outputs, dx, _ = forward_and_backward(block(), tokens())
    assert all(same(list(ours), [outputs, dx]) for ours in cluster(4).run(job).results if ours)


@pytest.mark.parametrize("world", WORLDS)
def test_shares_are_whole_units_and_cover_all(cluster, world):
    shares = cluster(world).run(lambda: [(s.start, s.stop) for s in (share(n * 3, 3) for n in range(world, 9))]).results
    for n, of_ranks in zip(range(world, 9), zip(*shares, strict=True), strict=True):
        assert [of_ranks[0][0], of_ranks[-1][1]] == [0, 3 * n]
        assert all(a[1] == b[0] for a, b in itertools.pairwise(of_ranks))
        sizes = [(stop - start) // 3 for start, stop in of_ranks]
        assert sizes == [len(x) for x in torch.arange(n).tensor_split(world)]


# -- what goes wrong -------------------------------------------------------------------------------------------------


def test_too_few_heads_or_features(cluster):
    with pytest.raises(RankError, match="24 in units of 12 cannot be shared by 3 ranks") as caught:
        cluster(3).run(lambda: parallel_attention(Attention(8, heads=2)))
    assert "parallel_attention(Attention(8, heads=2))" in str(caught.value).splitlines()[1]
    with pytest.raises(RankError, match="2 in units of 1 cannot be shared by 3 ranks"):
        cluster(3).run(lambda: parallel_mlp(MLP(8, hidden=2)))
    with pytest.raises(RankError, match="7 in units of 2 cannot"):
        cluster(2).run(lambda: ColumnParallelLinear(nn.Linear(3, 7), unit=2))
    with pytest.raises(ValueError, match="8 features cannot be shared equally by 3 heads"):
        Attention(8, heads=3)


def test_inputs_that_differ_in_shape_are_refused_on_the_readers_line(cluster):
    def job():
        mlp = parallel_mlp(block().mlp)
        return mlp(torch.ones(2 + dist.get_rank(), FEATURES, dtype=torch.double))

    with pytest.raises(MismatchError, match="the shape of all_reduce") as caught:
        cluster(2).run(job)
    assert "mlp(torch.ones(2 + dist.get_rank()" in str(caught.value)


def test_a_part_that_raises_on_one_rank_hangs_nobody(cluster):
    def job():
        model = parallel_block(block())
        if dist.get_rank() == 1:
            model.mlp.up.register_forward_hook(lambda *_: 1 / 0)
        model(tokens())

    with pytest.raises(RankError, match="rank 1 raised ZeroDivisionError"):
        cluster(3).run(job)
