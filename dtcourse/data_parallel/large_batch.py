"""Large batches: what becomes of the learning rate and of the loss when k workers make a batch k times as large.

    linear scaling    k times the batch, k times the rate. One step has to do what k small ones did: each of them moved
                      the weights by rate x gradient; all together, by k x rate x the mean of their gradients
    gradual warm-up   that holds while the gradient hardly changes within k small steps. At first it changes fast: so
                      begin with the small rate, and raise it by a constant amount at each iteration
    loss by samples   an all-reduce sums, so each rank divides by all samples of the step, of every rank and micro-batch

        warm-up to 0.8, k = 8, 4 iterations        iteration    0      1      2      3      4      5
                                                   rate        0.1   0.275  0.45   0.625   0.8    0.8

A step on each rank, with as many micro-batches as its share needs:

    samples = samples_of_step(len(share))                            # shares.py: of all ranks
    for x, y in micro_batches:
        losses = cross_entropy(model(x), y, reduction="none")
        loss_by_samples(losses, samples).backward()
    average_gradients(model.parameters(), all_reduce, share=1)       # the division is done: a plain sum
    optimizer.step()
    warmup.step()

Momentum needs no correction here: torch.optim.SGD keeps the rate out of the velocity (v = m v + g, w -= rate v). Where
it is inside (v = m v + rate g, w -= v; so in Keras), v remembers the old rates, and has to be multiplied by new / old
each time that the rate changes.

All three cost nothing. They end somewhere: the largest rate that trains hardly grows with the batch.

Source: Goyal et al., "Accurate, large minibatch SGD: training ImageNet in 1 hour" (2017): rate 0.1 for 256 samples, 3.2
for 8,192; warm-up over 5 epochs.
"""

from __future__ import annotations

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler


def scaled_rate(rate: float, batch: int, reference: int) -> float:
    """The rate for `batch` samples a step, where `rate` was found with `reference` samples a step.

    Both count the samples of all ranks and micro-batches. Raises ValueError for a batch without samples.
    """
    if batch < 1 or reference < 1:
        raise ValueError(f"a step takes one sample or more, not {min(batch, reference)}")
    return rate * batch / reference


class GradualWarmup(LRScheduler):
    """From 1/k of the optimizer's rates to all of them, by a constant amount at each of the first `iterations`.

    Call step() after each optimizer.step(), not after each epoch. Each parameter group warms up to its own rate. To go
    on with another schedule, use torch's SequentialLR. Raises ValueError for k < 1 and iterations < 0 (0: no warm-up).
    """

    def __init__(self, optimizer: Optimizer, k: float, iterations: int, last_epoch: int = -1) -> None:
        if k < 1 or iterations < 0:
            raise ValueError(
                f"a warm-up begins with 1/k of the rate, k >= 1, in 0 iterations or more: {k=}, {iterations=}"
            )
        self.k, self.iterations = k, iterations
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float | torch.Tensor]:
        """The rate of each parameter group in this iteration."""
        done = min(self.last_epoch / self.iterations, 1) if self.iterations else 1  # torch counts calls of step()
        return [rate / self.k + (rate - rate / self.k) * done for rate in self.base_lrs]


def loss_by_samples(losses: torch.Tensor, samples: int) -> torch.Tensor:
    """This micro-batch's part of the mean loss of a step: the parts of all ranks and micro-batches add up to it.

    `losses` has one loss for each sample of this micro-batch, in any shape; `samples` is how many there are in the
    whole step. Dividing by the micro-batch's own size would be another loss wherever sizes differ.
    Raises ValueError for fewer `samples` than losses.
    """
    if samples < losses.numel():
        raise ValueError(f"the step has {samples} samples in all, and this micro-batch alone {losses.numel()}")
    return losses.sum() / samples
