"""Exercise: between synchronous and asynchronous.

A parameter server that waits for all workers is as slow as the slowest one. A server that waits for nobody applies
stale gradients: while a worker computed, others have changed the parameters. Three rules lie between:

    bounded staleness       let the fast ones go ahead, but not too far                 may_begin
    backup workers          wait for the first k gradients of a step, drop the rest     first_k
    delay compensation      apply a stale gradient, but correct it first                compensate, compensate_adaptive

Each is a small function that answers a question of the server's. It sends nothing and waits for nothing: the check
plugs your functions into the course's own server, lets workers pull and push on real ranks, and looks at what the
server does by them. Write them in any order; none needs another one.

Workers are named by their ranks: rank 0 is the server. Steps are counted from 0.

Try it in a notebook with check("staleness"), or in a terminal with: dtcourse check staleness
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch


def may_begin(worker: int, completed: Mapping[int, int], s: int) -> bool:
    """Bounded staleness: whether `worker` may begin its next step now. If not, the server asks again later.

    completed   how many steps each worker has completed; `worker` is among them, and workers that have left are not
    s           how many steps a worker may be ahead of the slowest one; 0 is lockstep

    The rule: a worker begins step c when all have completed step c-s-1. Who has completed n steps has completed the
    steps 0 to n-1, and begins step n next. With s = 1, for worker 2:

        completed                begins step     needs step     may it?
        {1: 0, 2: 0, 3: 0}           0           none           True
        {1: 0, 2: 1, 3: 1}           1           none           True
        {1: 0, 2: 2, 3: 3}           2             0            False: worker 1 has not completed it
        {1: 1, 2: 2, 3: 4}           2             0            True
        {2: 7}                       7             5            True: a worker alone never waits

    The slowest worker may always begin: if it could not, nobody would ever go on.
    """
    raise NotImplementedError("not written yet: may_begin")


def first_k(steps: Sequence[int], step: int, k: int) -> list[float] | None:
    """Backup workers: what the server applies in `step`, of all that has arrived since its last update.

    steps   the step that each gradient belongs to, in the order in which they arrived
    step    the step that the server is in; no gradient is ahead of it
    k       how many gradients make an update

    Returns None if it is too early: fewer than k gradients of this step are there, so the server waits. Otherwise the
    share of each gradient in the update, in the order of `steps`. The first k of this step are averaged, so each of
    them has the share 1/k. All others are dropped, with the share 0. A gradient of an earlier step comes too late,
    whatever its place in the order: that step was over when its own k were there.

    With k = 2, in step 5:

        steps               returned
        []                  None
        [5]                 None
        [4, 5]              None                        one gradient of step 5, not two
        [4, 5, 3, 5]        [0.0, 0.5, 0.0, 0.5]
        [5, 5, 5]           [0.5, 0.5, 0.0]             the server looks late: a third one is there already
    """
    raise NotImplementedError("not written yet: first_k")


def compensate(gradient: torch.Tensor, weights: torch.Tensor, backup: torch.Tensor, lambda_: float) -> torch.Tensor:
    """Delay compensation: the gradient to apply in place of a stale one, a new tensor.

    gradient    g, which a worker computed on the weights that it had pulled
    backup      w_bak: those weights. The server kept a copy for each worker
    weights     w, as they are now on the server: other workers' updates have come in between
    lambda_     how strongly to correct; 0 is no correction

    All three tensors have the same shape, and stay as they are. With the loss L, g is L'(w_bak), and the server wants
    L'(w). To first order that is g + L''(w_bak) (w - w_bak). The second derivative of a whole model is too large to
    compute; g g, element by element, is a cheap stand-in for its diagonal, and lambda says how far to trust it:

        g  +  lambda g g (w - w_bak)

    For one number, with g = 2, w = 3, w_bak = 2.5, lambda = 0.1:  2 + 0.1 * 2 * 2 * 0.5 = 2.2. Where nothing has
    changed since the pull, the gradient stays as it is.
    """
    raise NotImplementedError("not written yet: compensate")


def compensate_adaptive(
    gradient: torch.Tensor,
    weights: torch.Tensor,
    backup: torch.Tensor,
    lambda_: float,
    mean_square: torch.Tensor,
    momentum: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same with a strength for each element. Two new tensors: the gradient to apply, and the new mean square.

    mean_square     ms: the running mean of g g over all gradients before this one, of all workers; zeros at first
    momentum        m: how much of it stays

    Gradients shrink while a model learns, and g g shrinks faster. Dividing by their usual size keeps the correction up:

        ms        =  m ms  +  (1 - m) g g
        strength  =  lambda / sqrt(ms + 1e-7)           with the new ms, which knows this gradient already
        applied   =  g  +  strength g g (w - w_bak)

    For one number, with g = 2, w - w_bak = 0.5, lambda = 0.1, ms = 0, m = 0.75: the new ms is 0.25 * 4 = 1, so the
    strength is 0.1, and applied is 2.2. The server keeps the new ms, and hands it in with the next gradient.
    """
    raise NotImplementedError("not written yet: compensate_adaptive")
