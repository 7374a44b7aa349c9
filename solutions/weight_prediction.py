"""Exercise: weights that move while a micro-batch is on its way.

An asynchronous pipeline never empties: stage s of P updates its weights after each backward (1F1B, PipeDream). So
between the forward of a micro-batch and its backward there are updates by others, and the gradient belongs to no
weights at all: old weights made the activations, new ones take them back. Two ways out:

    stashing     keep the weights of each forward, and go back on them                   gradients right, but late
    SpecTrain    go forward and back on the weights that are expected for one and        about right, and in time
                 the same moment to come: W - n lr v, n updates ahead

v is the velocity (the momentum): a running mean of the gradients. An update moves the weights by -lr v, so v says where
they are heading.

You write the pieces, and both policies from them. The check asks each of them alone, and then plugs the policies into
the course's own pipeline, on real ranks, and holds the weights of every update against a simulation in one process.

    stage, stages        s and P; stages are counted from 0
    microbatch           m, from 0
    weights, velocity    lists of tensors, one like the other. The stage computes with the memory of these tensors: to
                         change it, write into them (tensor.copy_(...), tensor -= ...). A new tensor in the list, or
                         under the same name, changes nothing
    lr, g                learning rate, and how much of v stays
    compute              compute() does the forward or the backward of the micro-batch, with whatever stands in the
                         weights when you call it. A forward returns the outputs; a backward returns the gradients, a
                         list of tensors like the weights. Call it once

Gradients of weights are never asked for in here: you need neither torch.no_grad() nor detach().

Try it in a notebook with check("weight_prediction"), or in a terminal with: dtcourse check weight_prediction
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Tensors = list[torch.Tensor]


# -- which weights, and how they move ----------------------------------------------------------------------------------


def versions(stage: int, stages: int, microbatch: int) -> tuple[int, int]:
    """How many updates the stage has made when a micro-batch comes through: at its forward, and at its backward.

    That is what it meets if nobody takes care. 1F1B, P = 3; F3 is the forward of micro-batch 3, B3 its backward, and
    each B is followed by an update of its stage:

        stage 0  F0 F1 F2 .. .. .. .. B0--- F3 B1--- F4 B2--- ...
        stage 1  .. F0 F1 .. .. B0--- F2 B1--- F3 B2--- F4 B3--- ...
        stage 2  .. .. F0 B0--- F1 B1--- F2 B2--- F3 B3--- ...

    On stage 0 the forward of micro-batch 3 comes after B0, and its backward after B0, B1, B2: versions(0, 3, 3) is
    (1, 3). Before its first backward a stage goes P-1-s forwards ahead, and nothing has been updated.
    """
    # BEGIN SOLUTION
    return max(0, microbatch - (stages - 1 - stage)), microbatch
    # END SOLUTION


def update(weights: Tensors, velocity: Tensors, gradients: Tensors, lr: float, g: float) -> None:
    """One update, in place: first the velocity, then the weights, with the new velocity.

        v  =  g v  +  (1 - g) gradient
        W  =  W  -  lr v

    For one number, with v = 2, gradient = 4, g = 0.75, W = 1, lr = 0.1: v becomes 2.5, and W 0.75.
    """
    # BEGIN SOLUTION
    for w, v, gradient in zip(weights, velocity, gradients, strict=True):
        v.mul_(g).add_((1 - g) * gradient)
        w -= lr * v
    # END SOLUTION


def compute_on(weights: Tensors, values: Tensors, compute: Callable[[], Any]) -> Any:
    """Call compute() while `values` stand in the weights; then put back the true ones. Returns what compute() returned.

    To put them back you have to have kept them: in memory of their own (clone).
    """
    # BEGIN SOLUTION
    true = [w.clone() for w in weights]
    for w, value in zip(weights, values, strict=True):
        w.copy_(value)
    answer = compute()
    for w, value in zip(weights, true, strict=True):
        w.copy_(value)
    return answer
    # END SOLUTION


# -- stashing ----------------------------------------------------------------------------------------------------------


def stashing_forward(microbatch: int, weights: Tensors, stash: dict[int, Tensors], compute: Callable[[], Any]) -> Any:
    """The forward of a micro-batch, on the weights as they are; they are kept in the stash for its backward.

    stash    the stage's own, empty at first: micro-batch -> weights. (PipeDream copies each version only once, and
             keeps P-s of them on stage s. Here each micro-batch may have a copy of its own.)

    Returns what compute() returned.
    """
    # BEGIN SOLUTION
    stash[microbatch] = [w.clone() for w in weights]
    return compute()
    # END SOLUTION


def stashing_backward(
    microbatch: int,
    weights: Tensors,
    velocity: Tensors,
    stash: dict[int, Tensors],
    lr: float,
    g: float,
    compute: Callable[[], Tensors],
) -> None:
    """The backward of a micro-batch, on the weights of its forward; then update the newest ones.

    What this micro-batch has in the stash goes with it: nobody needs it any more.
    """
    # BEGIN SOLUTION
    gradients = compute_on(weights, stash.pop(microbatch), compute)
    update(weights, velocity, gradients, lr, g)
    # END SOLUTION


# -- SpecTrain ---------------------------------------------------------------------------------------------------------


def ahead(stage: int, stages: int) -> tuple[int, int]:
    """How many updates ahead SpecTrain predicts: in the forward, and in the backward.

        forward     floor(s/2) + P-1-s
        backward    floor(s/2)

    The P-1-s updates between the two are all that differs: so both aim at the same weights. P = 4:

        stage 0    (3, 0)
        stage 1    (2, 0)
        stage 2    (2, 1)
        stage 3    (1, 1)
    """
    # BEGIN SOLUTION
    return stage // 2 + stages - 1 - stage, stage // 2
    # END SOLUTION


def predict(weights: Tensors, velocity: Tensors, lr: float, updates: int) -> Tensors:
    """The weights that are expected so many updates from now: W - updates lr v, in new tensors.

    `weights` and `velocity` stay as they are. For one number, with W = 1, v = 2, lr = 0.1: 0.4 in three updates.
    """
    # BEGIN SOLUTION
    return [w - updates * lr * v for w, v in zip(weights, velocity, strict=True)]
    # END SOLUTION


def spectrain_forward(
    stage: int, stages: int, weights: Tensors, velocity: Tensors, lr: float, compute: Callable[[], Any]
) -> Any:
    """The forward of a micro-batch, on predicted weights. Afterwards the weights are what they were.

    Returns what compute() returned.
    """
    # BEGIN SOLUTION
    updates, _ = ahead(stage, stages)
    return compute_on(weights, predict(weights, velocity, lr, updates), compute)
    # END SOLUTION


def spectrain_backward(
    stage: int,
    stages: int,
    weights: Tensors,
    velocity: Tensors,
    lr: float,
    g: float,
    compute: Callable[[], Tensors],
) -> None:
    """The backward of a micro-batch, on predicted weights; then put back the true ones, and update those."""
    # BEGIN SOLUTION
    _, updates = ahead(stage, stages)
    gradients = compute_on(weights, predict(weights, velocity, lr, updates), compute)
    update(weights, velocity, gradients, lr, g)
    # END SOLUTION
