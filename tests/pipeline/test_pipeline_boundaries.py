"""What crosses the boundaries of stages, and what must not: several tensors, new shapes, frozen layers, tied weights.

Everywhere the gradients are those of one process with the whole batch.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from piped_models import WIDTH, alone, batch, gradients, layers, mean_of_squares, mine, own, same, sum_of_squares
from torch import nn

from dtcourse.pipeline.runner import Pipeline
from dtcourse.pipeline.schedules import gpipe, interleaved, one_f_one_b
from dtcourse.pipeline.zero_bubble import zero_bubble_h1, zero_bubble_h2

MAKERS = (gpipe, one_f_one_b, zero_bubble_h2)


class Parts(nn.Module):
    """Hands on five tensors: strided, of truths, of whole numbers, of no dimension, and one that nobody needs."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH).double()

    def forward(self, x, shift):
        h = self.linear(x) + shift
        return h.t(), h > 0, h.argmax(-1), h.mean(), self.linear(x).float()


class Passes(nn.Module):
    """Uses some of them, and hands on a list."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WIDTH, WIDTH).double()

    def forward(self, h, positive, largest, mean, unused):
        return [h.t() * positive + self.embedding(largest), largest, mean, unused]


class Joins(nn.Module):
    def forward(self, h, largest, mean, unused):
        return {"joined": h.tanh() + mean, "largest": largest}  # to the loss alone


def of_two(outputs, targets):
    """Without a mean over samples in the model, so that a micro-batch's is the batch's."""
    y, scale = targets
    return ((outputs["joined"] - y) * scale).square().sum()


def several_tensors() -> bool:
    right = []
    for make in MAKERS:
        torch.manual_seed(0)
        modules = [Parts(), Passes(), Joins()]
        x, y = batch(3)
        x.requires_grad_()
        shift, scale = torch.linspace(0, 1, 3).double()[:, None], torch.linspace(1, 2, 3).double()[:, None]
        Pipeline(make(3, 3), mine(modules), of_two, reduction="sum").step((x, shift), (y, scale))
        got = {s: gradients(module) for s, module in mine(modules).items()}
        x_grad = x.grad
        for module in modules:
            module.zero_grad()
        x.grad = None
        for one in range(3):  # h.mean() is of a micro-batch: of one sample here
            outputs = modules[1](*modules[0](x[one : one + 1], shift[one : one + 1]))
            of_two(modules[2](*outputs), (y[one : one + 1], scale[one : one + 1])).backward()
        right += [same(part, gradients(modules[s])) for s, part in got.items()]
        right += [same([x_grad], [x.grad])] if 0 in got else [x_grad is None]
    return all(right)


@pytest.mark.parametrize(("backend", "strict"), [("auto", True), ("gloo", False)])
def test_several_tensors_of_all_kinds(cluster, backend, strict):
    assert cluster(3, backend, strict).run(several_tensors).results == [True] * 3


def new_sizes() -> bool:
    """Six batches, whose gradients add up: of the same size, of others, and lists."""
    right = []
    for make in MAKERS:
        modules, plain = own(3), layers(3)
        pipeline = Pipeline(make(3, 4), modules, mean_of_squares)
        for size in (8, 8, 5, 8, 6):
            pipeline.step(*batch(size))
            alone(plain, mean_of_squares, *batch(size))
        parts = [batch(size) for size in (1, 5, 2, 5)]
        pipeline.step([x for x, _ in parts], [y for _, y in parts])
        alone(plain, mean_of_squares, *(torch.cat(side) for side in zip(*parts, strict=True)))
        right += [same(gradients(module), gradients(plain[s])) for s, module in modules.items()]
    return all(right)


def test_sizes_may_change_and_gradients_add_up(cluster):
    run = cluster(3).run(new_sizes)
    assert run.results == [True] * 3
    control = [e for e in run.events if e.kind == "send" and e.control]
    sizes = len({(2,), (2, 1), (1,), (5,)}) - 1  # 2 and 1, from batches of 8 and 5 and 6; 1, 5 and 2 of the list
    tokens, boundaries = 6 * 2, 2  # a small message a step and pair of neighbours
    first_try = sizes * (2 * boundaries + 1)  # two headers a boundary; the last stage needs no values
    assert len(control) == len(MAKERS) * (tokens + first_try)


def noisy(recompute: bool) -> list[torch.Tensor]:
    """Gradients of stages with drop-out, and what they leave: the random state, and a batch norm's statistics."""
    torch.manual_seed(dist.get_rank())
    parts = lambda: [nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout(0.5)]  # noqa: E731
    module = nn.Sequential(*parts(), *parts()).double()
    pipeline = Pipeline(one_f_one_b(3, 4), {dist.get_rank(): module}, mean_of_squares, recompute=recompute)
    pipeline.step(*batch(8))
    return [*gradients(module), *module.buffers(), torch.rand(1)]


def test_finding_the_shapes_leaves_no_trace(cluster):
    def by_hand():
        torch.manual_seed(0)
        parts = lambda: [nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout(0.5)]  # noqa: E731
        module = nn.Sequential(*parts(), *parts()).double()
        for x in batch(8)[0].split(2):
            module(x)
        return [*module.buffers(), torch.rand(1)]

    plain, recomputed = cluster(3).run(noisy, False).results, cluster(3).run(noisy, True).results
    assert same(plain[0][8:], cluster(3).run(by_hand).results[0])
    for rank in range(3):
        assert same(recomputed[rank], plain[rank])


def frozen(makers, stages: tuple[int, ...]) -> bool:
    right = []
    for make in makers:
        modules, plain = layers(3), layers(3)
        for s in stages:
            modules[s].requires_grad_(False)
            plain[s].requires_grad_(False)
        pipeline = Pipeline(make(3, 4), mine(modules), mean_of_squares)
        loss = pipeline.step(*batch(8))
        outputs = nn.Sequential(*plain)(batch(8)[0])
        expected = mean_of_squares(outputs, batch(8)[1])
        if expected.requires_grad:
            expected.backward()
        right += [same(gradients(module), gradients(plain[s])) for s, module in mine(modules).items()]
        right.append(loss is None or same([loss], [expected.detach()]))
    return all(right)


@pytest.mark.parametrize(
    ("stages", "backwards"), [((0,), [(2, 1)]), ((0, 1), []), ((1,), [(1, 0), (2, 1)]), ((0, 1, 2), [])], ids=str
)
def test_a_gradient_that_nobody_needs_does_not_travel(cluster, stages, backwards):
    run = cluster(3).run(frozen, MAKERS, stages)
    assert run.results == [True] * 3
    ways = {(e.rank, e.peer) for e in run.messages()}
    assert ways == {(0, 1), (1, 2), *backwards}
    assert len(run.messages()) == len(MAKERS) * 4 * len(ways)


class Embeds(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = weight

    def forward(self, tokens):
        return self.weight[tokens]


class Scores(Embeds):
    def forward(self, x):
        return x @ self.weight.t()


def tied(chunks: int) -> bool:
    world, right = dist.get_world_size(), []
    stages = world * chunks
    schedules = [interleaved(world, 2 * world, chunks)] if chunks > 1 else [make(world, 3) for make in MAKERS]
    cross_entropy = nn.CrossEntropyLoss()
    tokens, labels = torch.arange(12) % 7, (torch.arange(12) * 3) % 7
    for schedule in schedules:
        torch.manual_seed(0)
        weight = nn.Parameter(torch.randn(7, WIDTH).double())
        whole = [Embeds(weight), *layers(stages - 2), Scores(weight)]
        copy = nn.Parameter(weight.detach().clone())  # of this rank
        parts = [Embeds(copy), *layers(stages - 2), Scores(copy)]
        modules = mine(parts)
        has_copy = dist.get_rank() in (0, world - 1)
        pipeline = Pipeline(schedule, modules, cross_entropy, tied=copy if has_copy else None)
        for _ in range(2):  # gradients add up, each batch's once
            pipeline.step(tokens, labels)
            alone(whole, cross_entropy, tokens, labels)
        right += [same(gradients(module), gradients(whole[s])) for s, module in modules.items()]
    return all(right)


@pytest.mark.parametrize(("world", "chunks"), [(2, 1), (3, 1), (2, 2), (1, 2)])
def test_tied_weights_of_the_first_and_the_last_stage(cluster, world, chunks):
    assert cluster(world).run(tied, chunks).results == [True] * world


def half_precision() -> bool:
    modules, plain = [m.bfloat16() for m in layers(2)], [m.bfloat16() for m in layers(2)]
    x, y = (side.bfloat16() for side in batch(8))
    Pipeline(one_f_one_b(2, 4), mine(modules), mean_of_squares).step(x, y)
    alone(plain, mean_of_squares, x, y)
    # bfloat16 has 8 bits: a sum of 4 parts may be off by a few times 2**-8 of its largest part
    return all(same(gradients(module), gradients(plain[s]), 0.02) for s, module in mine(modules).items())


def test_bfloat16_and_a_group_of_some_ranks_and_stages_without_parameters(cluster):
    def some():
        group = dist.new_group([2, 0])
        if dist.get_rank() == 1:
            return True
        rank = dist.get_rank(group)
        whole = [layers(1)[0], nn.Tanh()]
        loss = Pipeline(zero_bubble_h1(2, 3), {rank: whole[rank]}, sum_of_squares, reduction="sum", group=group).step(
            *batch(4)
        )
        got = gradients(whole[rank])
        whole[0].zero_grad()
        expected = alone(whole, sum_of_squares, *batch(4))
        return same(got, expected[1][rank]) and (loss is None or same([loss], expected[:1]))

    assert cluster(2).run(half_precision).results == [True] * 2
    assert cluster(3).run(some).results == [True] * 3
