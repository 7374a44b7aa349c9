"""Zero bubble: cut the backward in two, and let the half that nobody waits for fill the gaps.

A stage owes its neighbour only the gradient of its input (I). The gradient of its weights (W) may come later; its
activation must stay until then. H1 keeps as many on every rank as 1F1B on its first; H2 nearly twice as many and, seen
from each rank's first action to its last, has no bubble left where F = I = W.

The tables are as in `schedules`, with F, I and W taking one column each.

Source: Qi, Wan, Huang, Lin, "Zero bubble pipeline parallelism" (2023).
"""

from __future__ import annotations

from collections.abc import Iterator

from .actions import Action, Schedule, forward, input_gradient, require_sizes, weight_gradient


def zero_bubble_h1(stages: int, microbatches: int) -> Schedule:
    """ZB-H1: the forwards of 1F1B; rank s puts s weight halves off, for the gaps at the end.

    rank 0  F0 F1 F2 .. .. I0 W0 F3 I1 W1 F4 I2 W2 I3 W3 I4 W4
    rank 1  .. F0 F1 .. I0 F2 I1 W0 F3 I2 W1 F4 I3 W2 I4 W3 W4
    rank 2  .. .. F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 F4 I4 W2 W3 W4

    Idle, in the whole time: (P-1)(F+I-W) for M >= P, W <= F and W <= I. (Where F < W <= I it is (P-1)I: the wait
    for the first gradient comes before there is any W to fill it.) Memory: at most P activations on every rank.
    """
    require_sizes(stages=stages, microbatches=microbatches)
    ranks = (zero_bubble_rank(rank, microbatches, stages - 1 - rank, late=rank) for rank in range(stages))
    return Schedule(tuple(map(tuple, ranks)), stages, microbatches)


def zero_bubble_h2(stages: int, microbatches: int) -> Schedule:
    """ZB-H2: twice as many forwards ahead, so that the start has no gap either; twice as many weight halves late.

    rank 0  F0 F1 F2 F3 F4 I0 W0 I1 W1 I2 W2 I3 W3 I4 W4
    rank 1  .. F0 F1 F2 I0 F3 I1 F4 I2 W0 I3 W1 I4 W2 W3 W4
    rank 2  .. .. F0 I0 F1 I1 F2 I2 F3 I3 F4 I4 W0 W1 W2 W3 W4

    Idle, on rank 0 from its first action to its last (no rank idles more): (P-1)(F+I-2W) for M >= 2P-1, W <= F and
    W <= I. The ranks still start one after another: with F = I = W the whole time is that of H1. Memory: at most 2P-1
    activations on every rank.
    """
    require_sizes(stages=stages, microbatches=microbatches)
    ranks = (zero_bubble_rank(rank, microbatches, 2 * (stages - 1 - rank), late=2 * rank) for rank in range(stages))
    return Schedule(tuple(map(tuple, ranks)), stages, microbatches)


def zero_bubble_rank(rank: int, microbatches: int, ahead: int, late: int) -> Iterator[Action]:
    """One rank: `ahead` forwards before the first input half; each weight half follows `late` input halves later."""
    ahead = min(ahead, microbatches)
    for microbatch in range(ahead):
        yield forward(microbatch, rank)
    for microbatch in range(microbatches):
        if microbatch + ahead < microbatches:
            yield forward(microbatch + ahead, rank)
        yield input_gradient(microbatch, rank)
        if microbatch >= late:
            yield weight_gradient(microbatch - late, rank)
    for microbatch in range(max(0, microbatches - late), microbatches):
        yield weight_gradient(microbatch, rank)
