"""Runs a schedule on real ranks: each walks its own program, computing and exchanging as it says.

    schedule = one_f_one_b(stages=4, microbatches=8)            # or any other of this room, or one of your own
    pipeline = Pipeline(schedule, {rank: my_stage}, cross_entropy)
    for x, y in batches:
        loss = pipeline.step(x, y)                              # x counts on the first stage, y on the last
        optimizer.step()                                        # over the parameters of this rank's stages
        optimizer.zero_grad()

After a step the gradients are those of the whole batch, as if one process had computed them: a schedule changes who
waits for whom and what is kept how long, never the result. An asynchronous one updates as it goes: to it each
micro-batch is a batch of its own.

Bytes a step and boundary: the activations of the batch forward, and as much gradient back. Nothing else travels but a
small message to the next rank ahead of each step (`boundary`).

Source: Huang et al., "GPipe" (2019), for the micro-batches; who runs what when is the schedule's.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn

from .actions import Action, Kind, Schedule, Value
from .boundary import Boundaries
from .check import check
from .lowering import Exchange, lower
from .messages import Messages
from .microbatches import Batch, cut, shares
from .stage import Loss, Stage, Weights, as_tensors
from .tied import Tied


class Pipeline:
    """The stages of this rank, and its part of the schedule. All ranks of the group make one at the same time.

    modules    {stage: module} of the stages that live on this rank: one, or several if interleaved. The first module
               takes the samples, each other one what the one before it returns: a tensor, or several as a tuple.
               The shapes of its outputs follow from those of its inputs
    loss       loss(outputs, targets) of what the last module returns: a tensor of no dimension
    reduction  "mean" or "sum": how `loss` puts the samples of a micro-batch together
    recompute  keep a stage's inputs alone, and compute the rest again in its backward (`recompute`)
    weights    for an asynchronous schedule, {stage: policy}: which weights a micro-batch meets, and who updates them
    tied       on the ranks of the first and of the last stage, the parameter of which both have a copy (`tied`). On one
               rank alone, let both modules hold the same parameter instead

    Raises ScheduleError for a wrong schedule; ValueError for one of another world size, for modules of other stages,
    and for what does not fit together; later, from the ranks that can see it.
    """

    def __init__(
        self,
        schedule: Schedule,
        modules: Mapping[int, nn.Module],
        loss: Loss,
        *,
        reduction: str = "mean",
        recompute: bool = False,
        weights: Mapping[int, Weights] | None = None,
        tied: nn.Parameter | None = None,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        self._group = group or dist.group.WORLD
        rank, world = dist.get_rank(self._group), dist.get_world_size(self._group)
        check(schedule)
        check_places(schedule, modules, rank, world)
        check_options(schedule, reduction, recompute, weights, rank, world)
        check_tied(schedule, modules, tied, rank, world)
        self.schedule, self._program = schedule, lower(schedule)[rank]
        self._means = reduction == "mean" and not schedule.asynchronous
        self._last = schedule.stages - 1
        self._stages = {
            number: Stage(
                modules[number],
                number,
                schedule.stages,
                loss if number == self._last else None,
                weights=weights[number] if weights else None,
                recompute=recompute,
                halves=Action(Kind.INPUT, 0, number) in schedule.ranks[rank],
            )
            for number in sorted(modules)
        }
        device = next(iter(self._stages.values())).device
        self._boundaries = Boundaries(self._stages, schedule.stages, device, self._group)
        self._tied = Tied(tied, world - 1 - rank, self._group) if tied is not None and world > 1 else None

    def step(
        self, inputs: Batch | list[Batch] | None = None, targets: Batch | list[Batch] | None = None
    ) -> torch.Tensor | None:
        """Forward and backward of a batch; adds its gradients to those of the parameters.

        `inputs` count on the rank of the first stage alone, `targets` on that of the last. A tensor or a tuple of
        tensors is a batch, and is cut; a list is the micro-batches themselves (`microbatches`).

        Returns the loss, detached, on the rank of the last stage, None on the others. Of an asynchronous schedule, that
        is the losses of all micro-batches: a tensor of shape (M,).

        Raises TypeError or ValueError as `microbatches.cut` does; RuntimeError under `torch.no_grad()`.
        """
        if not torch.is_grad_enabled():
            raise RuntimeError("a pipeline trains: call step() outside of torch.no_grad()")
        count = self.schedule.microbatches
        samples = [as_tensors(one) for one in cut(inputs, count, "inputs of stage 0")] if 0 in self._stages else None
        answers = cut(targets, count, f"targets of stage {self._last}") if self._last in self._stages else None
        self._boundaries.find(count, samples)
        walk = Walk(self.schedule, self._stages, Messages(self._boundaries, self._group), samples, answers, self._means)
        with self._tied.summed() if self._tied else nullcontext():
            for line in self._program:
                walk.do(line)
        walk.finish()
        self._boundaries.finish()
        return walk.loss


class Walk:
    """One batch on one rank, line by line."""

    def __init__(
        self,
        schedule: Schedule,
        stages: Mapping[int, Stage],
        messages: Messages,
        samples: list[tuple[torch.Tensor, ...]] | None,
        targets: list[Batch] | None,
        means: bool,
    ) -> None:
        self._schedule, self._stages, self._messages = schedule, stages, messages
        self._samples, self._targets = samples, targets
        self._shares = shares(targets) if targets and means else [1.0] * schedule.microbatches
        self._losses: list[torch.Tensor] = []
        for stage in stages.values():
            stage.clear()

    def do(self, line: Action | Exchange) -> None:
        if isinstance(line, Exchange):
            self._messages.post(line)
        elif line.kind == Kind.FORWARD:
            self._forward(*line)
        elif line.kind == Kind.WEIGHT:
            self._stages[line.stage].weight_half(line.microbatch)
        else:
            self._backward(*line)

    def finish(self) -> None:
        """Wait for what this rank has sent."""
        self._messages.finish()

    @property
    def loss(self) -> torch.Tensor | None:
        if self._targets is None:
            return None
        losses = torch.stack(self._losses)
        return losses if self._schedule.asynchronous else losses.sum()

    def _forward(self, kind: Kind, microbatch: int, number: int) -> None:
        stage = self._stages[number]
        if stage.is_first:
            inputs = self._samples[microbatch]
        else:
            inputs = self._messages.take(Value("activation", microbatch, number - 1))
        if stage.is_last:
            targets, share = self._targets[microbatch], self._shares[microbatch]
            self._losses.append(stage.forward_to_loss(microbatch, inputs, targets, share))
        else:
            value = Value("activation", microbatch, number)
            self._messages.put(value, stage.forward(microbatch, inputs, self._messages.expected(value)))

    def _backward(self, kind: Kind, microbatch: int, number: int) -> None:
        stage = self._stages[number]
        compute = stage.backward if kind == Kind.BACKWARD else stage.input_half
        gradients = (None,) if stage.is_last else self._messages.take(Value("gradient", microbatch, number + 1))
        made = compute(microbatch, gradients)
        if not stage.is_first:
            self._messages.put(Value("gradient", microbatch, number), made)


def check_places(schedule: Schedule, modules: Mapping[int, nn.Module], rank: int, world: int) -> None:
    """The schedule is for this many ranks, and the modules are those of this one's stages."""
    if len(schedule.ranks) != world:
        raise ValueError(f"the schedule is for {len(schedule.ranks)} ranks, and the group has {world}")
    own = list(range(rank, schedule.stages, world))
    if not isinstance(modules, Mapping) or sorted(modules) != own:
        seen = f"stages {sorted(modules)}" if isinstance(modules, Mapping) else type(modules).__name__
        raise ValueError(
            f"modules: rank {rank} of {world} has the stages {own} of this schedule, and needs one module for each, as "
            f"{{{', '.join(f'{stage}: ...' for stage in own)}}}; got {seen}"
        )


def check_options(
    schedule: Schedule,
    reduction: str,
    recompute: bool,
    weights: Mapping[int, Weights] | None,
    rank: int,
    world: int,
) -> None:
    """What else can be seen to be wrong before anything runs."""
    if reduction not in ("mean", "sum"):
        raise ValueError(f'reduction={reduction!r}: has to be "mean" or "sum", as the loss does it')
    own = list(range(rank, schedule.stages, world))
    if schedule.asynchronous and sorted(weights or {}) != own:
        raise ValueError(
            f"an asynchronous schedule updates as it goes: give weights={{stage: policy}} for the stages {own}, "
            f"not {sorted(weights or {})}"
        )
    if weights and not schedule.asynchronous:
        raise ValueError("weights= are for asynchronous schedules; in this one, all of a batch meets the same weights")
    if weights and recompute:
        raise ValueError("recompute= would find other weights in the backward: not together with weights=")


def check_tied(
    schedule: Schedule, modules: Mapping[int, nn.Module], tied: nn.Parameter | None, rank: int, world: int
) -> None:
    """A tied parameter is one of this rank's modules, and the rank has the first stage or the last."""
    if tied is None:
        return
    if schedule.asynchronous or rank not in (0, world - 1):
        why = "its schedule is asynchronous" if schedule.asynchronous else f"rank {rank} has neither"
        raise ValueError(f"tied= is for the ranks of the first and the last stage of a synchronous schedule; {why}")
    if not any(one is tied for module in modules.values() for one in module.parameters()):
        raise ValueError(f"tied= is no parameter of the modules of rank {rank}: no gradient would ever reach it")
