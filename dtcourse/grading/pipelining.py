"""A reader's schedule on real ranks: one batch through a small model, and whether that went as planned, as findings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss

from dtcourse.events import REGION
from dtcourse.grading.findings import Finding
from dtcourse.grading.schedules import Pairs, listed, planned, short
from dtcourse.pipeline.actions import Action, Kind
from dtcourse.pipeline.runner import Pipeline
from dtcourse.run import Run

TOLERANCE = 1e-9  # of float64


def stages_of_a_model(stages: int) -> list[nn.Module]:
    """The same on every rank, in float64."""
    chance = torch.Generator().manual_seed(0)
    model = [nn.Sequential(nn.Linear(3, 3, dtype=torch.float64), nn.Tanh()) for _ in range(stages)]
    for parameter in nn.ModuleList(model).parameters():
        nn.init.normal_(parameter, generator=chance)
    return model


def batch(microbatches: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Samples and targets, (2M+1, 3) each: the micro-batches are not equally large."""
    chance = torch.Generator().manual_seed(1)
    samples, targets = torch.randn(2, 2 * microbatches + 1, 3, generator=chance, dtype=torch.float64)
    return samples, targets


def load_backward() -> None:
    """What the first backward from a given gradient loads, half a second of it.

    All ranks do that at once here; in a pipeline each would while all before it wait.
    """
    torch.ones((), requires_grad=True).backward(torch.ones(()))


def one_batch(rule: Callable[..., Any], microbatches: int) -> tuple[Pairs, list[torch.Tensor]]:
    """The schedule runs a batch through a small model of P stages, over messages."""
    rank, stages = dist.get_rank(), dist.get_world_size()
    lists = [listed(rule(other, stages, microbatches)) for other in range(stages)]
    own = stages_of_a_model(stages)[rank]
    load_backward()
    Pipeline(planned(lists, microbatches), {rank: own}, mse_loss).step(*batch(microbatches))
    return lists[rank], [parameter.grad for parameter in own.parameters()]


def gradients_of_the_batch(run: Run, microbatches: int) -> Iterator[Finding]:
    """Each stage has the gradients that one process gets from the whole batch."""
    model = nn.Sequential(*stages_of_a_model(run.world_size))
    samples, targets = batch(microbatches)
    mse_loss(model(samples), targets).backward()
    for stage, (module, (_, seen)) in enumerate(zip(model, run.results, strict=True)):
        for wanted, gradient in zip(module.parameters(), seen, strict=True):
            if not torch.allclose(gradient, wanted.grad, rtol=TOLERANCE, atol=TOLERANCE):
                off = float((gradient - wanted.grad).abs().max())
                said = f"the gradient of stage {stage} is off by {off:.3g} from the one of the whole batch"
                yield Finding(said, rank=stage)


def as_planned(run: Run, microbatches: int) -> Iterator[Finding]:
    """Each rank did what its list says, in this order."""
    schedule = planned([pairs for pairs, _ in run.results], microbatches)
    kinds = {"forward": Kind.FORWARD, "backward": Kind.BACKWARD}
    for rank, actions in enumerate(schedule.ranks):
        regions = [e for e in run.events if e.kind == REGION and e.rank == rank and e.op in kinds]
        seen = tuple(Action(kinds[e.op], e.labels["microbatch"], e.labels["stage"]) for e in regions)
        if seen != actions:
            did, says = (" ".join(map(short, each)) for each in (seen, actions))
            yield Finding(f"rank {rank} did {did}, and its list says {says}", rank=rank)
