"""A model cut layer by layer is the undivided model: outputs, gradients, bytes, who works when, and what goes wrong."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.distributed as dist
from divided_models import WIDTHS, batch, by_layers, gradients, mlp_layers, same, sequence, stack, stacked, undivided
from torch import nn
from torch.nn.functional import cross_entropy

from dtcourse import Deadlock, RankDied, RankError
from dtcourse.model_parallel import layers
from dtcourse.model_parallel.layers import Stage, own_layers
from dtcourse.model_parallel.lstm import unstack

CUTS = [[5], [2, 3], [4, 1], [1, 3, 1], [1, 1, 1, 2], [2, 1, 1, 1]]


@pytest.mark.parametrize("sizes", CUTS, ids=str)
def test_outputs_gradients_and_bytes_are_those_of_the_undivided_model(cluster, sizes):
    batches = [8, 8, 3]  # the last one smaller: shapes are found by running
    run = cluster(len(sizes)).run(by_layers, sizes, batches)
    outputs, expected = undivided(batches)
    assert same(run.results[-1][0], outputs)
    assert all(result[0] == [None] * 3 for result in run.results[:-1])
    assert same([g for result in run.results for g in result[1]], expected)
    boundaries = [WIDTHS[sum(sizes[:s])] * 8 * sum(batches) for s in range(1, len(sizes))]
    matrix = run.traffic_matrix()
    assert [matrix[s, s + 1] for s in range(len(boundaries))] == boundaries
    assert [matrix[s + 1, s] for s in range(len(boundaries))] == boundaries
    assert matrix.sum() == 2 * sum(boundaries)


def test_one_works_and_the_others_wait_as_the_file_draws_it(cluster):
    drawn = [line.split()[2:] for line in layers.__doc__.splitlines() if line.startswith("    stage ") and "." in line]
    drawn = [row for row in drawn if set(row) <= set("FB.")]
    assert len(drawn) == 4
    assert all(row.count(".") / len(row) == 3 / 4 for row in drawn)  # (P-1)/P, as the file says
    run = cluster(4).run(by_layers, [1, 1, 1, 2], [8])
    worked = sorted((e for e in run.events if e.op in ("forward", "backward")), key=lambda e: e.posted)
    assert all(e.ended <= later.posted for e, later in itertools.pairwise(worked))
    order = [(row.index(what), rank) for what in "FB" for rank, row in enumerate(drawn)]
    assert [e.rank for e in worked] == [rank for _, rank in sorted(order)]
    assert [e.op for e in worked] == ["forward"] * 4 + ["backward"] * 4
    assert all(e.labels == {"stage": e.rank} for e in worked)


@pytest.mark.parametrize("sizes", [[3], [1, 2], [2, 1, 1], [1, 1, 1, 1]], ids=str)
@pytest.mark.parametrize("options", [{}, {"bidirectional": True, "batch_first": True, "bias": False}, {"proj_size": 5}])
def test_a_stack_of_lstm_layers(cluster, sizes, options):
    run = cluster(len(sizes)).run(stacked, sizes, **options)
    whole = stack(sum(sizes), **options)
    outputs = whole(sequence())[0]
    outputs.square().sum().backward()
    assert same([run.results[-1][0]], [outputs.detach()])
    assert same([g for result in run.results for g in result[1]], gradients(whole))


def test_the_tenth_layer_is_not_taken_for_the_first():
    whole = stack(12)
    parts = nn.Sequential(*unstack(whole))
    assert torch.equal(parts(sequence()), whole(sequence())[0])
    with pytest.raises(ValueError, match=r"dropout=0\.5.*put nn\.Dropout there"):
        unstack(nn.LSTM(4, 6, num_layers=2, dropout=0.5))


def test_without_gradients_nothing_travels_back(cluster):
    def evaluated():
        stage = Stage(own_layers(mlp_layers(), [2, 1, 2]))
        with torch.no_grad():
            outputs = stage.forward(batch(4)[0])
        return outputs

    run = cluster(3).run(evaluated)
    assert torch.allclose(run.results[-1], nn.Sequential(*mlp_layers())(batch(4)[0]), atol=1e-10)
    assert [(e.rank, e.peer) for e in run.messages()] == [(0, 1), (1, 2)]


def test_frozen_first_layers_get_no_gradient_and_need_no_message(cluster):
    def frozen():
        stage = Stage(own_layers(mlp_layers(), [2, 1, 2]))
        if stage.is_first:
            stage.layers.requires_grad_(False)
        x, y = batch(4)
        outputs = stage.forward(x)
        stage.backward(cross_entropy(outputs, y) if stage.is_last else None)
        return [g for g in gradients(stage.layers) if g is not None]

    run = cluster(3).run(frozen)
    assert [(e.rank, e.peer) for e in run.messages()] == [(0, 1), (1, 2), (2, 1)]
    assert run.results[0] == []
    assert same(run.results[1] + run.results[2], gradients_from(4, 2))


def gradients_from(size: int, layer: int) -> list[torch.Tensor]:
    return undivided([size])[1][2 * layer :]  # a weight and a bias each


def test_a_stage_that_cuts_the_graph_sends_zeros_back(cluster):
    class Deaf(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3, dtype=torch.double))

        def forward(self, x):
            return self.weight.expand(len(x), 3)

    def job():
        stage = Stage(own_layers([mlp_layers()[0], Deaf()], [1, 1]))
        outputs = stage.forward(batch(4)[0])
        stage.backward(outputs.sum() if stage.is_last else None)
        return gradients(stage.layers)

    results = cluster(2).run(job).results
    assert all(torch.equal(g, torch.zeros_like(g)) for g in results[0])
    assert torch.equal(results[1][0], torch.full((3,), 4.0, dtype=torch.double))


def test_strided_outputs_and_half_precision_and_a_subgroup(cluster):
    class Turned(nn.Module):
        def forward(self, x):
            return x.transpose(0, 2)

    def job():
        group = dist.new_group([1, 3])
        if dist.get_rank() not in (1, 3):
            return None
        stage = Stage(own_layers([Turned(), nn.Tanh()], [1, 1], group), group)
        x = torch.linspace(-1, 1, 24).view(2, 3, 4).bfloat16().requires_grad_()
        outputs = stage.forward(x)
        stage.backward(outputs.sum() if stage.is_last else None)
        return x.grad if stage.is_first else outputs.detach()

    x = torch.linspace(-1, 1, 24).view(2, 3, 4).bfloat16().requires_grad_()
    outputs = x.transpose(0, 2).tanh()
    outputs.sum().backward()
    results = cluster(4).run(job).results
    assert torch.equal(results[1], x.grad) and torch.equal(results[3], outputs.detach())


# -- what goes wrong -------------------------------------------------------------------------------------------------


class Raises(nn.Module):
    def __init__(self, forward):
        super().__init__()
        self.now = forward

    def forward(self, x):
        if self.now:
            raise ArithmeticError("nothing good came of it")  # forwards
        return Backwards.apply(x)


class Backwards(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise ArithmeticError("nothing good came of it")  # backwards


@pytest.mark.parametrize("stage", [0, 1, 2])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_a_stage_that_raises_is_named_with_its_line(cluster, stage, direction):
    def job():
        parts = [*mlp_layers()[:3]]
        parts[stage].append(Raises(direction == "forward"))
        mine = Stage(own_layers(parts, [1, 1, 1]))
        outputs = mine.forward(batch(4)[0])
        mine.backward(outputs.sum() if mine.is_last else None)

    with pytest.raises(RankError) as caught:
        cluster(3).run(job)
    said = str(caught.value)
    assert caught.value.rank == stage and "nothing good came of it" in said.splitlines()[0]
    assert f"# {direction}s" in said.splitlines()[1]
    assert f"In the {direction} pass of stage {stage} of 3 (rank {stage}), whose inputs were float64 (4," in said


def test_a_wrong_shape_is_told_where_it_arrives(cluster):
    def job():
        parts = [nn.Linear(6, 9), nn.Linear(8, 3)]
        Stage(own_layers(parts, [1, 1])).forward(torch.ones(4, 6))

    with pytest.raises(RankError, match="4x9 and 8x3") as caught:
        cluster(2).run(job)
    assert caught.value.rank == 1
    assert "forward(torch.ones(4, 6))" in str(caught.value).splitlines()[1]
    assert "stage 1 of 2 (rank 1), whose inputs were float32 (4, 9) from stage 0." in str(caught.value)


class Pair(nn.Module):
    def forward(self, x):
        return x, x


class Count(nn.Module):
    def forward(self, x):
        return x.argmax(-1)


@pytest.mark.parametrize(("layer", "what"), [(Pair, "tuple"), (Count, r"torch.int64 \(4,\)")])
def test_what_cannot_be_handed_on(cluster, layer, what):
    with pytest.raises(RankError, match=f"{what} was to be handed on: let the layers return one") as caught:
        cluster(2).run(lambda: Stage(own_layers([layer(), nn.Tanh()], [1, 1])).forward(torch.ones(4, 6)))
    assert caught.value.rank == 0 and "stage 0 of 2 (rank 0)" in str(caught.value)


@pytest.mark.parametrize(
    ("sizes", "says"),
    [([2, 3], "2 stages, and there are 3 ranks"), ([5, 0, 0], "1 or more"), ([1, 1, 1], "3 layers, and there are 5")],
)
def test_cuts_that_do_not_fit(cluster, sizes, says):
    with pytest.raises(RankError, match=says):
        cluster(3).run(lambda: own_layers(mlp_layers(), sizes))


MISUSES = {
    "stage 0 of 2 .rank 0. is the first and needs the samples": lambda stage: stage.forward(),
    "stage 1 of 2 .rank 1. is the last: backward.loss.": lambda stage: (stage.forward(batch(4)[0]), stage.backward()),
    "stage 0 of 2 .rank 0. has no outputs": lambda stage: (
        stage.forward(batch(4)[0]),
        stage.backward(torch.zeros((), requires_grad=True)),
    ),
    "each backward.. follows a forward": lambda stage: stage.backward(),
}


@pytest.mark.parametrize("says", MISUSES)
def test_misuse_is_named(cluster, says):
    with pytest.raises(RankError, match=says):
        cluster(2).run(lambda: MISUSES[says](Stage(own_layers(mlp_layers(), [2, 3]))))


def test_going_back_twice_is_refused(cluster):
    def job():
        stage = Stage(own_layers(mlp_layers(), [2, 3]))
        outputs = stage.forward(batch(4)[0])
        stage.backward(outputs.sum() if stage.is_last else None)
        stage.backward(torch.zeros(()) if stage.is_last else None)

    with pytest.raises(RankError, match="no activations to go back from"):
        cluster(2).run(job)


def test_nothing_hangs_if_a_stage_dies_or_leaves(cluster):
    def dies():
        stage = Stage(own_layers(mlp_layers(), [2, 1, 2]))
        if stage.number == 1:
            import os

            os._exit(3)
        stage.forward(batch(4)[0])

    def leaves():
        stage = Stage(own_layers(mlp_layers(), [2, 1, 2]))
        outputs = stage.forward(batch(4)[0])
        if not stage.is_last:  # which forgets to go back
            stage.backward(outputs)

    with pytest.raises(RankDied) as caught:
        cluster(3).run(dies)
    assert caught.value.rank == 1
    with pytest.raises(Deadlock) as stuck:
        cluster(3).run(leaves)
    assert "stage.backward(outputs)" in str(stuck.value)
