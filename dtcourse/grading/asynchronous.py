"""What ranks do when a reader's weight policy is tested where it acts: an asynchronous pipeline of the course asks it.

A policy is written around a call, compute(). So to autograd each stage is one function here: its forward and its
backward ask the reader's, which calls compute() when the weights are as it wants them. What stood in the weights then,
and what stands there afterwards, is recorded; `dtcourse.grading.predictions` looks at it.
"""

from __future__ import annotations

import contextlib
import reprlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.func import functional_call
from torch.nn.functional import mse_loss

from dtcourse.grading.pipelining import load_backward, stages_of_a_model
from dtcourse.pipeline.actions import Schedule
from dtcourse.pipeline.runner import Pipeline

LR, G = 0.1, 0.75

Rules = Callable[..., Any] | tuple[Callable[..., Any], ...]


class Seen(NamedTuple):
    """One action. Tensors are flat: all of the stage's, one after the other."""

    met: torch.Tensor  # what stood in the weights when compute() was called
    weights: torch.Tensor  # and when the rule was done
    velocity: torch.Tensor
    stashed: int  # how much there is in the stash


class Compute:
    """compute(), as the reader is given it: does the work, once, and notes what stood in the weights."""

    def __init__(self, name: str, weights: Sequence[torch.Tensor], work: Callable[[], Any]) -> None:
        self._name, self._weights, self._work = name, weights, work
        self.met: torch.Tensor | None = None
        self.answer: Any = None

    def __call__(self) -> Any:
        if self.met is not None:
            raise RuntimeError(f"{self._name} called compute() a second time; there is one micro-batch to compute")
        self.met, self.answer = flat(self._weights), self._work()
        return self.answer

    def require_called(self) -> None:
        if self.met is None:
            raise RuntimeError(f"{self._name} did not call compute(): nothing was computed")

    def require_returned(self, returned: Any) -> None:
        if returned is not self.answer:
            raise TypeError(f"{self._name} returned {reprlib.repr(returned)}, and not what compute() returned")


class Asked:
    """A policy that asks nobody: plain SGD on the newest weights. `record`: what was seen of each action, in order."""

    forward_name, backward_name = "the forward", "the backward"

    def __init__(self, rules: Rules, module: nn.Module) -> None:
        self.rules, self.stage, self.stages = rules, dist.get_rank(), dist.get_world_size()
        self.module = module
        self._velocity = [torch.zeros_like(weight) for weight in self.weights]
        self.stash: dict[Any, Any] = {}
        self.updates = 0
        self.record: list[Seen] = []
        self._asks = torch.zeros((), requires_grad=True)  # so that there is a backward on the first stage, too

    @property
    def weights(self) -> list[torch.Tensor]:
        """Tensors that share the memory of the module's: whatever somebody does to these, only that memory counts."""
        return [parameter.data for parameter in self.module.parameters()]

    @property
    def velocity(self) -> list[torch.Tensor]:
        return [v.data for v in self._velocity]

    # what the pipeline asks

    def call(self, microbatch: int, inputs: torch.Tensor) -> torch.Tensor:
        return AsOne.apply(self, microbatch, inputs, self._asks)

    @contextlib.contextmanager
    def backward(self, microbatch: int) -> Iterator[None]:
        yield
        self.updates += 1

    def version(self, microbatch: int) -> int:
        return self.updates

    # what the reader is asked

    def forward_by_rule(self, microbatch: int, compute: Compute) -> Any:
        return compute()

    def backward_by_rule(self, microbatch: int, compute: Compute) -> None:
        for weight, gradient in zip(self.weights, compute(), strict=True):
            weight -= LR * gradient

    def do(self, name: str, rule: Callable[[int, Compute], Any], microbatch: int, work: Callable[[], Any]) -> Compute:
        """Ask the rule to have this work done, and record the weights."""
        compute = Compute(name, self.weights, work)
        returned = rule(microbatch, compute)
        compute.require_called()
        if name == self.forward_name:
            compute.require_returned(returned)
        self.record.append(Seen(compute.met, flat(self.weights), flat(self.velocity), len(self.stash)))
        return compute


class AskStashing(Asked):
    """Asks stashing_forward(m, weights, stash, ...) and stashing_backward(m, weights, velocity, stash, lr, g, ...)."""

    forward_name, backward_name = "stashing_forward", "stashing_backward"

    def forward_by_rule(self, microbatch: int, compute: Compute) -> Any:
        return self.rules[0](microbatch, self.weights, self.stash, compute)

    def backward_by_rule(self, microbatch: int, compute: Compute) -> None:
        self.rules[1](microbatch, self.weights, self.velocity, self.stash, LR, G, compute)


class AskSpecTrain(Asked):
    """Asks spectrain_forward(s, P, weights, velocity, lr, ...) and spectrain_backward(s, P, ..., lr, g, ...)."""

    forward_name, backward_name = "spectrain_forward", "spectrain_backward"

    def forward_by_rule(self, microbatch: int, compute: Compute) -> Any:
        return self.rules[0](self.stage, self.stages, self.weights, self.velocity, LR, compute)

    def backward_by_rule(self, microbatch: int, compute: Compute) -> None:
        self.rules[1](self.stage, self.stages, self.weights, self.velocity, LR, G, compute)


class AsOne(torch.autograd.Function):
    """A stage as one function: what the rules have computed, forward and backward."""

    @staticmethod
    def forward(ctx: Any, policy: Asked, microbatch: int, inputs: torch.Tensor, asks: torch.Tensor) -> torch.Tensor:
        ctx.policy, ctx.microbatch, ctx.inputs = policy, microbatch, inputs.detach().requires_grad_()
        # leaves that share the memory of the weights, but not the count of changes: autograd will find what is there
        parameters = policy.module.named_parameters()
        ctx.aliases = {name: weight.data.requires_grad_() for name, weight in parameters}

        def work() -> torch.Tensor:
            with torch.enable_grad():
                ctx.outputs = functional_call(policy.module, ctx.aliases, ctx.inputs)
            return ctx.outputs.detach()

        return policy.do(policy.forward_name, policy.forward_by_rule, microbatch, work).answer.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, None, torch.Tensor, None]:
        policy = ctx.policy

        def work() -> list[torch.Tensor]:
            torch.autograd.backward(ctx.outputs, gradient)
            return [alias.grad for alias in ctx.aliases.values()]

        policy.do(policy.backward_name, policy.backward_by_rule, ctx.microbatch, work)
        return None, None, ctx.inputs.grad, None


# -- what the ranks are asked to do ------------------------------------------------------------------------------------


def train(ask: type[Asked], rules: Rules, schedule: Schedule) -> list[tuple]:
    """Each forward and each backward on a rank is one call of a rule, which calls compute() once."""
    rank = dist.get_rank()
    own = stages_of_a_model(schedule.stages)[rank]
    policy = ask(rules, own)
    load_backward()
    samples, targets = (list(side) for side in data(schedule.microbatches))
    Pipeline(schedule, {rank: own}, mse_loss, weights={rank: policy}).step(samples, targets)
    return [tuple(seen) for seen in policy.record]


def train_and_say(versions: Callable[..., Any], schedule: Schedule) -> list[Any]:
    """Each rank trains, and asks versions(its stage, stages, microbatch) for each micro-batch."""
    train(Asked, versions, schedule)
    return [versions(dist.get_rank(), schedule.stages, m) for m in range(schedule.microbatches)]


def update_each(update: Callable[..., Any], cases: Sequence[tuple]) -> list[tuple[list[torch.Tensor], ...]]:
    """Weights, velocity and gradients after an update, for each case."""
    for *tensors, lr, g in cases:
        update(*map(aliases, tensors), lr, g)
    return [tuple(case[:3]) for case in cases]


def predict_each(predict: Callable[..., Any], cases: Sequence[tuple]) -> list[tuple[list[torch.Tensor], ...]]:
    """predict(weights, velocity, lr, updates) returns a list of tensors like the weights, for each case."""
    seen = []
    for weights, velocity, lr, updates in cases:
        answer = predict(aliases(weights), aliases(velocity), lr, updates)
        if not alike(answer, weights):
            raise TypeError(f"predict returned {reprlib.repr(answer)}, which is no list of tensors like the weights")
        seen.append(([*answer], weights, velocity))
    return seen


def compute_on_each(rule: Callable[..., Any], cases: Sequence[tuple]) -> list[tuple[Any, ...]]:
    """compute() is called once, and compute_on returns what it returned; for each case."""
    seen = []
    for weights, values in cases:
        compute = Compute("compute_on", weights, lambda: ["what compute() returned"])
        returned = rule(aliases(weights), aliases(values), compute)
        compute.require_called()
        compute.require_returned(returned)
        seen.append((compute.met, weights, values))
    return seen


def data(microbatches: int) -> torch.Tensor:
    """Samples and targets of each micro-batch: (2, M, 2, 3)."""
    return torch.randn(2, microbatches, 2, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def aliases(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Tensors that share the memory of these, and nothing else."""
    return [tensor.data for tensor in tensors]


def flat(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """All elements, one after the other, in memory of their own."""
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def alike(answer: Any, tensors: Sequence[torch.Tensor]) -> bool:
    """Whether it is a list of as many tensors, each like the one in its place."""
    if not isinstance(answer, (list, tuple)) or len(answer) != len(tensors):
        return False
    pairs = zip(answer, tensors, strict=True)
    return all(isinstance(a, torch.Tensor) and (a.shape, a.dtype) == (b.shape, b.dtype) for a, b in pairs)
