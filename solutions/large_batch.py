"""Exercise: large batches.

k workers make a batch k times as large, and an epoch has k times fewer steps. So that a training gets as far with them,
each step has to be longer, but not at once; and its gradient has to be that of all the samples, however they are spread
over ranks and micro-batches.

Four functions. Each is checked on its own, so begin with any.

    scaled_rate      linear scaling: the rate grows with the batch
    warm_up          from the small rate to the large one, by the same amount at each iteration
    step_gradients   one step's gradient on real ranks: micro-batches add up, ranks add up, the loss is by samples
    momentum_step    momentum whose velocity has the rate inside, while the rate changes

    group                the ranks that take part; None is all ranks
    adding up            dist.all_reduce(x, group=group) leaves the sum of everybody's x with everybody, in place
    loss.backward()      *adds* the gradient of `loss` to what is in parameter.grad

Try it in a notebook with check("large_batch"), or in a terminal with: dtcourse check large_batch
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn


def scaled_rate(rate: float, reference: int, local: int, ranks: int, micro_batches: int) -> float:
    """Linear scaling: the learning rate for a large batch.

    rate            what was found to be good for steps on `reference` samples
    local           samples of a micro-batch
    ranks           how many ranks take part in a step
    micro_batches   how many micro-batches each of them takes in a step, one after the other

    The rule: k times the samples in a step, k times the rate.

        rate   reference   local   ranks   micro-batches   returned
        0.1       256        32     256          1            3.2        ResNet-50 in an hour
        0.05       32        32       4          2            0.4
        0.4       256        16       2          1            0.05       smaller steps on fewer samples
    """
    # BEGIN SOLUTION
    return rate * local * ranks * micro_batches / reference
    # END SOLUTION


def warm_up(iteration: int, small: float, large: float, iterations: int) -> float:
    """Gradual warm-up: the learning rate of an iteration, counted from 0.

    Iteration 0 has the rate `small`. Each iteration after it has more than the one before, always by the same amount,
    such that iteration `iterations` is the first one with the rate `large`. From there on it stays.

        small = 0.1, large = 0.8         iteration   0      1      2      3      4      5      99
        iterations = 4                   rate        0.1    0.275  0.45   0.625  0.8    0.8    0.8
        iterations = 1                   rate        0.1    0.8    0.8    0.8    0.8    0.8    0.8
        iterations = 0: no warm-up       rate        0.8    0.8    0.8    0.8    0.8    0.8    0.8
    """
    # BEGIN SOLUTION
    if iteration >= iterations:
        return large
    return small + (large - small) * iteration / iterations
    # END SOLUTION


def step_gradients(
    model: nn.Module,
    losses_of: Callable[[nn.Module, Any], torch.Tensor],
    micro_batches: Sequence[Any],
    group: dist.ProcessGroup | None = None,
) -> None:
    """Leave in .grad of model.parameters() the gradient of the mean loss over all samples of the step, on every rank.

    micro_batches               what this rank takes in this step, one after the other. They may differ in size, and
                                ranks in how many they have; a rank may have none (of all ranks at least one has some)
    losses_of(model, micro)     the losses of the samples of one micro-batch: a tensor of shape (samples,)

    "All samples" are those of all ranks and micro-batches, and each of them counts the same. Let rank 0 have
    micro-batches of 4 and 2 samples, rank 1 one of 2, and g[r,m] be the gradient of the *mean* loss of rank r's
    micro-batch m. Then it is

        4/8 g[0,0]  +  2/8 g[0,1]  +  2/8 g[1,0]

    What .grad held before, from the step before this one, does not count. Every rank takes part, also one without
    micro-batches: its copy of the model has to make the same step as all the others.

    Micro-batches are there to save memory: each one's backward pass is over before the next begins. They cost no
    messages: gradients add up on the rank, and travel once a step, as tensors that are added up on the way.

    Hints: how many samples there are in all has to be known before the first backward pass, or made good for after the
    last. len(losses) is how many one micro-batch has.
    """
    # BEGIN SOLUTION
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    samples = torch.tensor(0)
    for micro in micro_batches:
        losses = losses_of(model, micro)
        losses.sum().backward()
        samples += len(losses)
    dist.all_reduce(samples, group=group)
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, group=group)
        parameter.grad /= samples
    # END SOLUTION


def momentum_step(
    weights: torch.Tensor,
    velocity: torch.Tensor,
    gradient: torch.Tensor,
    rate: float,
    before: float,
    momentum: float,
) -> None:
    """One step of SGD with momentum whose velocity has the rate inside; `weights` and `velocity` change in place.

    rate, before    the rate of this step, and that of the step before it (equal, if it has not changed)

    With m for the momentum and g for the gradient:

        velocity   v  becomes  m v (rate / before) + rate g
        weights    w  become   w - v                            with the new v

    v is a sum of old gradients, each times its own old rate. When the rate changes, rate / before makes them gradients
    times the new rate: *momentum correction*. (torch.optim.SGD leaves the rate outside, v = m v + g and w = w - rate v,
    and has nothing to correct. Both make the same steps.)

    For one number, with w = 1, v = 0.5, g = 2, m = 0.8, rate = 0.2 and before = 0.1: the new v is
    0.8 * 0.5 * 2 + 0.2 * 2 = 1.2, and the new w is -0.2.
    """
    # BEGIN SOLUTION
    velocity.mul_(momentum * rate / before).add_(gradient, alpha=rate)
    weights.sub_(velocity)
    # END SOLUTION
