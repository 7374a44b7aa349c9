"""Update rules, as what a server asks: may this worker begin, does this gradient count, is it time to update?

    policy                  a gradient counts         update                    a worker begins its next step
    Synchronous()           always                    when all have pushed      after the update
    BackupWorkers(k)        among the first k         after k gradients         after the update
    Asynchronous()          always                    at once                   at once
    BoundedStaleness(s)     always                    at once                   step c when all have completed c-s-1
    DelayCompensation(x)    as in the policy below, corrected for what has changed since its worker pulled

The staleness of a gradient is the number of updates between the pull of its parameters and its own update: 0 for the
first two. W equal workers under Asynchronous have W-1 in the steady state: every other one updates once in between.
Under BoundedStaleness it is at most (W-1) (2s+1): who begins step c knows that all have completed c-s-1, and until it
pushes, the others can complete no more than c+s.

Steps of the first two are numbered for all workers together, by the version; in the others each worker counts its own.

Sources: Ho et al., "More effective distributed ML via a stale synchronous parallel parameter server" (2013); Chen et
al., "Revisiting distributed synchronous SGD" (2016); Zheng et al., "Asynchronous stochastic gradient descent with
delay compensation" (2017), with the adaptive rule as in Multiverso's dcasgda_updater.h.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch


@dataclass(frozen=True, eq=False)
class Push:
    """A gradient that arrived. `step` and `version` are those with which its worker began; tensors are flat."""

    worker: int
    step: int
    version: int
    samples: int
    gradient: torch.Tensor
    pulled: torch.Tensor  # the parameters it was computed on


@dataclass
class Standing:
    """How far the training is, for a policy to judge by."""

    working: set[int]  # the ranks of the workers that have neither finished nor died
    version: int = 0  # how many updates the parameters have had
    latest: dict[int, int] = field(default_factory=dict)  # worker -> the step it pushed last; -1 before
    kept: list[Push] = field(default_factory=list)  # gradients that count and wait for the update


class Asynchronous:
    """Apply each gradient at once; the reply is the worker's next pull."""

    def step(self, worker: int, now: Standing) -> int:
        """The number of the step that `worker` begins with its next pull."""
        return now.latest[worker] + 1

    def may_begin(self, worker: int, now: Standing) -> bool:
        """Whether `worker` may have the parameters for its next step."""
        return True

    def counts(self, push: Push, now: Standing) -> bool:
        """Whether this gradient is kept for an update; otherwise it is dropped."""
        return True

    def ready(self, now: Standing) -> bool:
        """Whether it is time to update with the kept gradients."""
        return bool(now.kept)

    def weights(self, pushes: list[Push]) -> list[float]:
        """The share of each gradient in the update: by samples, since the mean of means is not the mean."""
        total = sum(push.samples for push in pushes)
        return [push.samples / total for push in pushes]

    def gradient(self, push: Push, parameters: torch.Tensor) -> torch.Tensor:
        """What to apply for this gradient, where `parameters` are the newest, flat."""
        return push.gradient

    def can_go_on(self, now: Standing) -> bool:
        """Whether those who work are enough: asked at the start, and when one has died."""
        return bool(now.working)


class Synchronous(Asynchronous):
    """Wait for the gradients of all workers, average them by samples, update once."""

    def step(self, worker: int, now: Standing) -> int:
        return now.version

    def may_begin(self, worker: int, now: Standing) -> bool:
        return now.version > now.latest[worker]

    def ready(self, now: Standing) -> bool:
        return bool(now.kept) and now.working <= {push.worker for push in now.kept}


class BackupWorkers(Synchronous):
    """Apply the first `k` gradients of a step, drop the rest by step number; W - k workers are backups.

    Up to W - k deaths pass. When workers have finished and no k are left, the training is over: what still comes is
    dropped.

    On several servers each counts its own first k of its own steps. So a gradient may count on one and be dropped on
    another, a slow worker may have pulled shards of different versions, and the shards may end an update or more
    apart. (Systems that want one step for all let one server close it for the others, and pay a round trip.)
    """

    def __init__(self, k: int) -> None:
        if k < 1:
            raise ValueError(f"BackupWorkers(k) waits for at least one gradient a step, not {k!r}")
        self.k = k

    def may_begin(self, worker: int, now: Standing) -> bool:
        return super().may_begin(worker, now) or self._over(now)

    def counts(self, push: Push, now: Standing) -> bool:
        return push.step == now.version and not self._over(now)

    def ready(self, now: Standing) -> bool:
        return len(now.kept) >= self.k

    def can_go_on(self, now: Standing) -> bool:
        return len(now.working) >= self.k

    def _over(self, now: Standing) -> bool:
        return len(now.working | {push.worker for push in now.kept}) < self.k


class BoundedStaleness(Asynchronous):
    """Apply each gradient at once; a worker begins step c when all have completed step c-s-1. s = 0: in lockstep."""

    def __init__(self, s: int) -> None:
        if s < 0:
            raise ValueError(f"BoundedStaleness(s) lets a worker be s >= 0 steps ahead, not {s!r}")
        self.s = s

    def may_begin(self, worker: int, now: Standing) -> bool:
        return all(now.latest[other] >= self.step(worker, now) - self.s - 1 for other in now.working)


class DelayCompensation(Asynchronous):
    """Correct a stale gradient g for what changed while it was computed: g + lambda g g (w - w_bak).

    w_bak is what the worker pulled, w what is there now: to first order the gradient at w, with g g in place of the
    Hessian. `adaptive`: lambda / sqrt(ms + 1e-7) for lambda, where ms = momentum ms + (1 - momentum) g g is a running
    mean over all workers' gradients. `on` says when workers go on: Asynchronous() or BoundedStaleness(s).
    An object serves one training: it keeps ms.
    """

    def __init__(
        self, lambda_: float, adaptive: bool = False, momentum: float = 0.95, on: Asynchronous | None = None
    ) -> None:
        if isinstance(on, Synchronous):
            raise ValueError(
                f"under {type(on).__name__} no gradient that counts is stale: there is nothing to compensate"
            )
        self.lambda_, self.adaptive, self.momentum = lambda_, adaptive, momentum
        self.on = on or Asynchronous()
        self.mean_square: torch.Tensor | None = None

    def may_begin(self, worker: int, now: Standing) -> bool:
        return self.on.may_begin(worker, now)

    def gradient(self, push: Push, parameters: torch.Tensor) -> torch.Tensor:
        g = push.gradient
        return g + self._strength(g) * g * g * (parameters - push.pulled)

    def _strength(self, g: torch.Tensor) -> torch.Tensor | float:
        if not self.adaptive:
            return self.lambda_
        before = torch.zeros_like(g) if self.mean_square is None else self.mean_square
        self.mean_square = self.momentum * before + (1 - self.momentum) * g * g
        return self.lambda_ / (self.mean_square + 1e-7).sqrt()
