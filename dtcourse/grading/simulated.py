"""Asynchronous training in one process that keeps every version of every weight: what ranks are held against.

Each action of the schedule, one after the other, with the weights that a policy gives it. Backwards are written as
formulas: autograd would not go back through other weights than those of the forward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import nn

from dtcourse.grading.asynchronous import LR, G, data, flat
from dtcourse.grading.pipelining import stages_of_a_model
from dtcourse.pipeline.actions import Action, Kind, Schedule
from dtcourse.pipeline.order import in_order


class Stage:
    """One stage, outputs = tanh(W inputs + b): all versions of its weights (W and b, flat), and its velocity."""

    def __init__(self, number: int, stages: int, module: nn.Module) -> None:
        self.number, self.stages = number, stages
        self.versions = [flat([*module.parameters()])]
        self.velocity = torch.zeros_like(self.versions[0])
        self.met: dict[int, int] = {}  # micro-batch in flight -> how many updates there had been at its forward
        self._kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # its inputs and outputs

    @property
    def weights(self) -> torch.Tensor:
        return self.versions[-1]

    @property
    def updates(self) -> int:
        return len(self.versions) - 1

    def predicted(self, updates: int) -> torch.Tensor:
        return self.weights - updates * LR * self.velocity

    def forward(self, microbatch: int, inputs: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        matrix, bias = weights[:-3].view(3, 3), weights[-3:]
        outputs = torch.tanh(inputs @ matrix.T + bias)
        self._kept[microbatch], self.met[microbatch] = (inputs, outputs), self.updates
        return outputs

    def backward(
        self, microbatch: int, gradient: torch.Tensor, weights: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The gradients of inputs and weights: the activations are those of the forward, whatever the weights are."""
        inputs, outputs = self._kept.pop(microbatch)
        gradient = gradient * (1 - outputs * outputs)
        return gradient @ weights[:-3].view(3, 3), flat([gradient.T @ inputs, gradient.sum(0)])


class Moment(NamedTuple):
    """An action: what compute() meets, what it makes, and what stands there afterwards. `stage` is not updated yet."""

    action: Action
    stage: Stage
    met: torch.Tensor
    made: torch.Tensor  # outputs, or the gradient of the inputs: what goes to the next stage, or to the one before
    gradient: torch.Tensor | None  # of the weights, in a backward
    weights: torch.Tensor
    velocity: torch.Tensor
    in_flight: int  # micro-batches between their forward and their backward


Policy = Callable[[Stage, Kind, int], torch.Tensor]  # stage, forward or backward, micro-batch -> the weights to meet


def stashing(stage: Stage, kind: Kind, microbatch: int) -> torch.Tensor:
    return stage.weights if kind == Kind.FORWARD else stage.versions[stage.met[microbatch]]


def spectrain(stage: Stage, kind: Kind, microbatch: int) -> torch.Tensor:
    return stage.predicted(spectrain_ahead(stage, kind))


def spectrain_ahead(stage: Stage, kind: Kind) -> int:
    return stage.number // 2 + (stage.stages - 1 - stage.number if kind == Kind.FORWARD else 0)


def simulated(schedule: Schedule, policy: Policy) -> Iterator[Moment]:
    """All actions, in an order in which they could have happened."""
    last = schedule.stages - 1
    stages = [Stage(number, last + 1, module) for number, module in enumerate(stages_of_a_model(last + 1))]
    samples, targets = data(schedule.microbatches)
    values = dict(zip(((m, -1) for m in range(len(samples))), samples, strict=True))  # micro-batch, stage -> outputs
    gradients: dict[tuple[int, int], torch.Tensor] = {}  # micro-batch, stage -> of its inputs
    for _, action in in_order(schedule):
        kind, m, s = action
        stage, met = stages[s], policy(stages[s], kind, m)
        if kind == Kind.FORWARD:
            values[m, s] = stage.forward(m, values[m, s - 1], met)
            yield Moment(action, stage, met, values[m, s], None, stage.weights, stage.velocity, len(stage.met))
            continue
        off = values[m, s] - targets[m]
        gradients[m, s], gradient = stage.backward(m, 2 * off / off.numel() if s == last else gradients[m, s + 1], met)
        velocity = G * stage.velocity + (1 - G) * gradient
        weights = stage.weights - LR * velocity
        yield Moment(action, stage, met, gradients[m, s], gradient, weights, velocity, len(stage.met) - 1)
        stage.versions.append(weights)
        stage.velocity = velocity
        del stage.met[m]
