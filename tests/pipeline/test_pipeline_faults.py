"""What goes wrong in a pipeline is named: the stage, the micro-batch, the reader's line. Nothing hangs.

And the next run works: all tests here share their ranks.
"""

from __future__ import annotations

import os
import re

import pytest
import torch
import torch.distributed as dist
from piped_models import WIDTH, batch, layers, mean_of_squares, mine, own
from torch import nn

from dtcourse import RankDied, RankError
from dtcourse.pipeline.actions import Schedule, backward, forward
from dtcourse.pipeline.runner import Pipeline
from dtcourse.pipeline.schedules import gpipe, one_f_one_b, pipedream
from dtcourse.pipeline.weights import Naive
from dtcourse.pipeline.zero_bubble import zero_bubble_h1


class Counted(nn.Module):
    """Does `what` when it is called for the n-th time, with what is passed through it then."""

    def __init__(self, n, what):
        super().__init__()
        self.n, self.what = n, what

    def forward(self, x):
        self.n -= 1
        return self.what(x) if self.n == 0 else x


class Backwards(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise ArithmeticError("nothing good came of it")  # backwards


def raises(x):
    raise ArithmeticError("nothing good came of it")  # forwards


# -- a stage that fails ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", [0, 1, 2])
@pytest.mark.parametrize(("what", "word"), [(raises, "forward"), (Backwards.apply, "backward")])
def test_a_stage_that_raises_is_named_with_its_micro_batch_and_line(cluster, stage, what, word):
    def job():
        parts = layers(3)
        tried = stage < 2  # the last stage is not
        parts[stage].append(Counted(3 + tried, what))  # of micro-batch 2
        Pipeline(one_f_one_b(3, 4), mine(parts), mean_of_squares).step(*batch(8))

    with pytest.raises(RankError) as caught:
        cluster(3).run(job)
    said = str(caught.value)
    assert caught.value.rank == stage and "nothing good came of it" in said.splitlines()[0]
    assert f"# {word}s" in said.splitlines()[1]
    source = f"stage {stage - 1}" if stage else "the batch"
    assert (
        f"In the {word} of micro-batch 2 on stage {stage} of 3 (rank {stage}), whose inputs were float64 (2, 4)" in said
    )
    assert f" from {source}." in said


def test_the_input_half_is_named_and_so_is_the_trial(cluster):
    def halves():
        parts = layers(3)
        parts[1].append(Counted(2, Backwards.apply))
        Pipeline(zero_bubble_h1(3, 4), mine(parts), mean_of_squares).step(*batch(8))

    def trial():
        parts = layers(3)
        parts[1].append(Counted(1, raises))
        Pipeline(zero_bubble_h1(3, 4), mine(parts), mean_of_squares).step(*batch(8))

    with pytest.raises(RankError, match=r"In the input half of micro-batch 0 on stage 1 of 3"):
        cluster(3).run(halves)
    with pytest.raises(RankError, match=r"In the forward of micro-batch 0 on stage 1 of 3"):
        cluster(3).run(trial)


@pytest.mark.parametrize("backend", ["auto", "gloo"])
def test_a_stage_that_is_killed_ends_the_run(cluster, backend):
    def job():
        parts = layers(3)
        parts[1].append(Counted(3, lambda x: os._exit(3)))
        Pipeline(one_f_one_b(3, 4), mine(parts), mean_of_squares).step(*batch(8))

    with pytest.raises(RankDied) as caught:
        cluster(3, backend).run(job)
    assert caught.value.rank == 1
    run = cluster(3, backend).run(lambda: Pipeline(gpipe(3, 2), own(3), mean_of_squares).step(*batch(4)))
    assert run.results[2] is not None


def test_a_module_that_refuses_its_input(cluster):
    def job():
        parts = [nn.Linear(WIDTH, 9).double(), nn.Linear(8, 3).double(), nn.Tanh()]
        Pipeline(gpipe(3, 2), mine(parts), mean_of_squares).step(*batch(4))

    with pytest.raises(RankError, match="2x9 and 8x3") as caught:
        cluster(3).run(job)
    said = str(caught.value)
    assert "on stage 1 of 3 (rank 1), whose inputs were float64 (2, 9) from stage 0." in said


def test_shapes_that_depend_on_values_and_layers_frozen_in_between(cluster):
    def cut_off():
        parts = layers(3)
        parts[1].append(Counted(2, lambda x: x[:, 1:]))
        Pipeline(gpipe(3, 2), mine(parts), mean_of_squares).step(*batch(4))

    def frozen():
        modules = own(3)
        pipeline = Pipeline(gpipe(3, 2), modules, mean_of_squares)
        pipeline.step(*batch(4))
        if 0 in modules:
            modules[0].requires_grad_(False)
        pipeline.step(*batch(4))

    says = r"1 of 3 .rank 1. returned float64 .2, 3. requires_grad=True; .*tried.* float64 .2, 4. requires_grad=True\."
    with pytest.raises(RankError, match=says):
        cluster(3).run(cut_off)
    with pytest.raises(RankError, match="stage 0 of 3 .* unfreezing layers, make a new Pipeline"):
        cluster(3).run(frozen)


# -- wrong use -------------------------------------------------------------------------------------------------------


def door(schedule=None, modules=None, loss=mean_of_squares, x=None, y=None, **options):
    """Everything is right, unless told otherwise."""
    samples, targets = batch(8)
    pipeline = Pipeline(schedule or gpipe(3, 4), own(3) if modules is None else modules, loss, **options)
    return pipeline.step(samples if x is None else x, targets if y is None else y)


LATE = Schedule(
    ((forward(0, 0), backward(0, 0)), (backward(0, 1), forward(0, 1)), (forward(0, 2), backward(0, 2))), 3, 1
)
LAST = r"targets of stage 2"
EVERYWHERE = {  # every rank refuses by itself
    r"for 2 ranks, and the group has 3": lambda: door(gpipe(2, 4)),
    r"rank \d of 3 has the stages \[\d\].* got stages \[0, 1, 2\]": lambda: door(modules=dict(enumerate(layers(3)))),
    r"rank \d of 3 .* as \{\d: \.\.\.\}; got Sequential": lambda: door(modules=layers(3)[0]),
    r"rank 1, action 0 .B0 of stage 1.: needs": lambda: door(LATE),
    r"a list is no schedule: Schedule\(ranks": lambda: door([[("F", 0), ("B", 0)]] * 3),
    r"reduction='average'": lambda: door(reduction="average"),
    r"give weights=\{stage: policy\} for the stages \[\d\], not \[\]": lambda: door(pipedream(3, 4)),
    r"weights= are for asynchronous": lambda: door(weights={dist.get_rank(): policy()}),
    r"not together with weights=": lambda: door(pipedream(3, 4), weights={dist.get_rank(): policy()}, recompute=True),
    r"outside of torch.no_grad": lambda: torch.no_grad()(door)(),
}
SOMEWHERE = {  # the rank that can see it
    r"tied= is for .* rank 1 has neither": lambda: door(tied=nn.Parameter(torch.ones(2)) if at(1) else None),
    r"tied= is no parameter of .* rank 2": lambda: door(tied=nn.Parameter(torch.ones(2)) if at(2) else None),
    r"inputs of stage 0: 3 samples for 4 micro-batches": lambda: door(x=torch.ones(3, WIDTH)),
    r"inputs of stage 0: a list of 2, and the schedule has 4": lambda: door(x=[torch.ones(1, WIDTH)] * 2),
    r"inputs of stage 0\[1\] is empty": lambda: door(x=[torch.ones(n, WIDTH) for n in (1, 0, 1, 1)]),
    r"inputs of stage 0: .* have \[4, 5\] samples": lambda: door(x=(torch.ones(4), torch.ones(5))),
    r"inputs of stage 0: expected a tensor .* got str": lambda: door(x="samples"),
    rf"{LAST}: expected a tensor .* got NoneType": lambda: Pipeline(gpipe(3, 4), own(3), sum).step(batch(8)[0]),
    rf"{LAST}: expected a tensor .* got a tensor of no dimension": lambda: door(y=torch.tensor(1.0)),
    rf"{LAST}: 2 samples for 4": lambda: door(y=torch.ones(2, WIDTH)),
    r"the loss has to be a tensor of no dimension.* got shape \(2, 4\)": lambda: door(loss=lambda a, b: a - b),
    r"the loss has to be .* got float": lambda: door(loss=lambda a, b: 1.0),
    r"a stage hands on a tensor .* returned dict": lambda: door(modules=mine([Returns({}), *layers(2)])),
    r"returned tuple of \(Tensor, tuple\)": lambda: door(modules=mine([Returns((torch.ones(2), ())), *layers(2)])),
    r"at most 8 dimensions": lambda: door(modules=mine([Returns(torch.ones([1] * 9)), *layers(2)])),
}


def at(rank):
    return dist.get_rank() == rank


class Returns(nn.Module):
    def __init__(self, what):
        super().__init__()
        self.what = what

    def forward(self, x):
        return self.what


def policy():
    module = layers(1)[0]
    return Naive(module, torch.optim.SGD(module.parameters(), lr=0.1))


def refusals() -> list[str]:
    found = []
    for wrong in EVERYWHERE.values():
        try:
            found.append(f"nothing, but returned {wrong()}")
        except Exception as problem:
            found.append(str(problem))
    return found


def test_wrong_use_is_refused_on_every_rank(cluster):
    for said in cluster(3).run(refusals).results:
        for says, text in zip(EVERYWHERE, said, strict=True):
            assert re.search(says, text), text


@pytest.mark.parametrize("says", SOMEWHERE)
def test_wrong_use_is_refused_where_it_can_be_seen(cluster, says):
    with pytest.raises(RankError, match=says) as caught:
        cluster(3).run(SOMEWHERE[says])
    assert "test_pipeline_faults.py, line" in str(caught.value).splitlines()[1]


@pytest.mark.parametrize(
    ("other", "says"), [(torch.zeros(2), "hold different values"), (torch.ones(5), r"float32 \(5,\)")]
)
def test_copies_of_tied_weights_that_are_none(cluster, other, says):
    def job():
        modules, copy = own(3), nn.Parameter(torch.ones(2) if at(0) else other)
        modules[dist.get_rank()].register_parameter("copy", copy)
        Pipeline(gpipe(3, 4), modules, mean_of_squares, tied=None if at(1) else copy)

    with pytest.raises(RankError, match=f"tied: .*{says}"):
        cluster(3).run(job)
