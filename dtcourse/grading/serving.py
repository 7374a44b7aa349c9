"""What ranks do when a reader's rule is tested where it acts: the course's own server asks it, workers push in turn.

The policies here hand each question of the server's to the reader's function, and mark it as "asked": the call as one
would write it, what it returned, and what the server made of that. Such a rule judges by what has arrived when, so that
is not left to chance: `turns` names the worker of each push, and whose turn is over passes a token on. If a rule keeps
somebody from going on whose turn it is, everybody waits, and the run ends as a deadlock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from dtcourse.events import mark, region
from dtcourse.parameter_server.policies import Asynchronous, Push, Standing, Synchronous
from dtcourse.parameter_server.server import serve
from dtcourse.parameter_server.worker import Worker

ASKED = "asked"
LR = 0.125  # of the server: a power of two, so that an update can be read from the parameters to the last digit

_TOKEN = torch.zeros(1)  # lives as long as any message of it

Gradient = Callable[[int, torch.Tensor], torch.Tensor]


def train(policy: Asynchronous, start: torch.Tensor, gradient: Gradient, turns: Sequence[int]) -> None:
    """Rank 0 serves `start`, one flat tensor, with SGD; whose turn it is pushes gradient(its rank, what it pulled).

    `turns`: the rank of the worker of each push. All workers have pulled before the first turn.
    """
    model = nn.ParameterList([start])
    if dist.get_rank() == 0:
        serve(model, _SGD, policy)
    else:
        _work(Worker(model), model[0], gradient, turns)


class _SGD:
    """Plain SGD. The first of torch's own optimizers in a process loads its compiler: seconds, in each new cluster."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters = parameters

    @torch.no_grad()
    def step(self) -> None:
        for parameter in self.parameters:
            parameter -= LR * parameter.grad


def _work(worker: Worker, parameters: nn.Parameter, gradient: Gradient, turns: Sequence[int]) -> None:
    me, others = dist.get_rank(), set(turns) - {dist.get_rank()}
    mine = [turn for turn, whose in enumerate(turns) if whose == me]
    worker.pull()
    tokens = [_pass_on(turns[0])] if me != turns[0] else []
    for turn in mine:
        for other in others if turn == 0 else others & {turns[turn - 1]}:
            _take(other)
        parameters.grad = gradient(me, parameters.detach())
        worker.push(samples=1)
        tokens += [_pass_on(whose) for whose in others & set(turns[turn + 1 : turn + 2])]
        if turn != mine[-1]:
            worker.pull()
    worker.finish()
    for token in tokens:
        token.wait()


def _pass_on(rank: int) -> dist.Work:
    with region("control"):
        return dist.isend(_TOKEN, rank)


def _take(rank: int) -> None:
    with region("control"):
        token = dist.irecv(torch.empty_like(_TOKEN), rank)
    token.wait()  # outside: waiting is no work of anybody's


# -- policies that ask -------------------------------------------------------------------------------------------------


class AskMayBegin(Asynchronous):
    """Asks may_begin(worker, completed, s)."""

    def __init__(self, may_begin: Callable[..., Any], s: int) -> None:
        self.rule, self.s = may_begin, s

    def may_begin(self, worker: int, now: Standing) -> bool:
        completed = {w: now.latest[w] + 1 for w in sorted(now.working | {worker})}
        call = f"may_begin({worker}, {completed}, s={self.s})"
        answer = self.rule(worker, completed, self.s)
        step, slowest = now.latest[worker] + 1, min(completed.values())
        mark(ASKED, call=call, answer=repr(answer), worker=worker, step=step, slowest=slowest, begins=bool(answer))
        return bool(answer)


class AskFirstK(Synchronous):
    """Asks first_k(steps, step, k), with all gradients that have come since the last update."""

    def __init__(self, first_k: Callable[..., Any], k: int) -> None:
        self.rule, self.k, self.shares = first_k, k, dict[Push, float]()

    def ready(self, now: Standing) -> bool:
        if not now.kept:
            return False
        steps = [push.step for push in now.kept]
        shares = self.rule(list(steps), now.version, self.k)
        call = f"first_k({steps}, step={now.version}, k={self.k})"
        mark(ASKED, call=call, answer=repr(shares), step=now.version, fit=steps.count(now.version))
        if shares is None:
            return False
        if not isinstance(shares, Sequence) or len(shares) != len(steps):
            raise ValueError(f"{call} returned {shares!r}: return a share for each gradient, or None to wait")
        self.shares = dict(zip(now.kept, shares, strict=True))
        for push in now.kept:
            if not self.shares[push]:
                mark("dropped", worker=push.worker, step=push.step)
        now.kept = [push for push in now.kept if self.shares[push]]
        return bool(now.kept)

    def weights(self, pushes: list[Push]) -> list[float]:
        return [float(self.shares[push]) for push in pushes]


class AskCompensate(Asynchronous):
    """Asks compensate(gradient, weights, backup, lambda_)."""

    def __init__(self, compensate: Callable[..., Any], lambda_: float) -> None:
        self.rule, self.lambda_ = compensate, lambda_

    def gradient(self, push: Push, parameters: torch.Tensor) -> torch.Tensor:
        return like(push.gradient, self.rule(push.gradient, parameters, push.pulled, self.lambda_), "compensate")


class AskCompensateAdaptive(Asynchronous):
    """Asks compensate_adaptive(gradient, weights, backup, lambda_, mean_square, momentum); keeps the mean square."""

    def __init__(self, compensate: Callable[..., Any], lambda_: float, momentum: float) -> None:
        self.rule, self.lambda_, self.momentum = compensate, lambda_, momentum
        self.mean_square: torch.Tensor | None = None

    def gradient(self, push: Push, parameters: torch.Tensor) -> torch.Tensor:
        before = torch.zeros_like(push.gradient) if self.mean_square is None else self.mean_square
        answer = self.rule(push.gradient, parameters, push.pulled, self.lambda_, before, self.momentum)
        applied, self.mean_square = two_like(push.gradient, answer, "compensate_adaptive")
        return applied


# -- what rules return -------------------------------------------------------------------------------------------------


def like(gradient: torch.Tensor, answer: Any, name: str) -> torch.Tensor:
    """The answer, if it is a tensor like the gradient. Raises TypeError with the name of the function otherwise."""
    if isinstance(answer, torch.Tensor) and (answer.shape, answer.dtype) == (gradient.shape, gradient.dtype):
        return answer
    raise TypeError(f"{name} returned {_kind(answer)}; the gradient is {_kind(gradient)}")


def two_like(gradient: torch.Tensor, answer: Any, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The same for two tensors: what to apply, and the mean square."""
    if not isinstance(answer, Sequence) or len(answer) != 2:
        raise TypeError(f"{name} returned {_kind(answer)}; it returns two tensors, what to apply and the mean square")
    applied, mean_square = (like(gradient, tensor, name) for tensor in answer)
    return applied, mean_square


def _kind(answer: Any) -> str:
    return f"{answer.dtype} {tuple(answer.shape)}" if isinstance(answer, torch.Tensor) else repr(answer)


def answers(function: Callable[..., Any], cases: Sequence[tuple]) -> list[tuple[Any, tuple]]:
    """What the function returns for each of these arguments, with the arguments as they stand afterwards."""
    return [(function(*case), case) for case in cases]
