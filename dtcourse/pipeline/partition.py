"""Cut a list of layers into stages that take equally long, as nearly as their costs allow.

A pipeline is as fast as its slowest stage, so the best cut is the one whose largest stage is smallest. Layers stay in
order. Cutting into stages of equally many layers is the naive way: it cuts [6, 1, 1, 1, 1, 2] into 8 + 4, where
6 + 6 is best.

    best(p, j) = the smallest largest stage for the first j layers in p stages
               = min over i of max(best(p-1, i), cost of layers i to j-1)

As i grows, the first grows and the second shrinks: the minimum is where they cross. As j grows, the crossing only moves
right, so one walk over i serves all j, and the whole takes (layers x stages) steps.

Source: the linear partition problem, e.g. Skiena, "The algorithm design manual" (8.5); PipeDream cuts its models so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate, pairwise


def partition(
    costs: Sequence[float], stages: int, memory: Sequence[float] | None = None, limit: float = math.inf
) -> tuple[range, ...]:
    """The layers of each stage, as ranges of indices, such that the most expensive stage is as cheap as can be.

    `costs`: one number a layer, such as its measured time of forward and backward; none negative. `memory` and `limit`:
    bytes a layer needs, and the most that a stage may hold. To balance memory itself, pass it as `costs`.

    Every stage has at least one layer. Raises ValueError for fewer layers than stages, for a cost that is negative or
    no number, and if no cut keeps within the limit; the message then says how many stages would do.
    """
    if memory is None:
        if limit < math.inf:
            raise ValueError(
                "partition: a limit needs the memory of each layer: partition(costs, stages, memory, limit)"
            )
        memory = [0] * len(costs)
    require_layers(costs, memory, stages)
    memory = [Fraction(size) for size in memory]  # exact: a stage that just fits must not fail by a rounding
    require_room(memory, limit, stages)
    time = [0, *accumulate(costs)]
    first = first_layers(memory, limit)
    best = [0.0, *[math.inf] * len(costs)]  # no layer in no stage
    cuts: list[list[int]] = []  # cuts[p-1][j]: where the last of p stages begins
    for stage in range(stages):
        best, cut = one_stage_more(time, first, best, stage)
        cuts.append(cut)
    ends = [len(costs)]
    for cut in reversed(cuts):
        ends.append(cut[ends[-1]])
    return tuple(range(start, end) for start, end in pairwise(reversed(ends)))


def one_stage_more(
    time: Sequence[float], first: Sequence[int], best: Sequence[float], stage: int
) -> tuple[list[float], list[int]]:
    """From best(p-1, .) to best(p, .), and where the last stage then begins. p - 1 = `stage`."""
    layers = len(time) - 1
    better, cut = [math.inf] * (layers + 1), [0] * (layers + 1)
    i = stage  # the stages before have at least one layer each
    for j in range(stage + 1, layers + 1):
        low = max(stage, first[j])
        i = max(i, low)
        while i < j - 1 and best[i] < time[j] - time[i]:
            i += 1
        better[j], cut[j] = max(best[i], time[j] - time[i]), i  # just right of the crossing
        if i > low and time[j] - time[i - 1] <= better[j]:  # just left of it
            better[j], cut[j] = time[j] - time[i - 1], i - 1
    return better, cut


def first_layers(memory: Sequence[Fraction], limit: float) -> list[int]:
    """For each j, the first layer from which layers up to j-1 fit into one stage."""
    total = [0, *accumulate(memory)]
    first, i = [0], 0
    for j in range(1, len(total)):
        while total[j] - total[i] > limit:
            i += 1
        first.append(i)
    return first


def require_layers(costs: Sequence[float], memory: Sequence[float], stages: int) -> None:
    """Refuse numbers that mean nothing."""
    if not 1 <= stages <= len(costs):
        raise ValueError(f"partition: {len(costs)} layers into {stages} stages: each stage needs at least one layer")
    if len(memory) != len(costs):
        raise ValueError(f"partition: {len(costs)} costs, but the memory of {len(memory)} layers")
    for name, numbers in (("cost", costs), ("memory", memory)):
        for layer, number in enumerate(numbers):
            if not 0 <= number < math.inf:
                raise ValueError(
                    f"partition: the {name} of layer {layer} is {number}; it must be 0 or more, and finite"
                )


def require_room(memory: Sequence[Fraction], limit: float, stages: int) -> None:
    """Refuse a limit that no cut can keep, by filling stage after stage to the brim."""
    needed, held = 1, Fraction(0)
    for layer, size in enumerate(memory):
        if size > limit:
            raise ValueError(
                f"partition: layer {layer} alone needs {float(size):g}, more than a stage may hold ({limit:g})"
            )
        needed, held = (needed, held + size) if held + size <= limit else (needed + 1, size)
    if needed > stages:
        raise ValueError(
            f"partition: no cut into {stages} stages keeps each within {limit:g}; it takes {needed} stages"
        )
