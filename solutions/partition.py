"""Exercise: cut a model into stages that take equally long, as nearly as its layers allow.

A pipeline is as fast as its slowest stage: all others wait for it, with each micro-batch again. So of all ways to cut a
list of layers into stages, the best is the one whose largest stage is smallest. Layers stay in their order, and each
stage has one at least.

    partition           by time alone
    partition_within    by time, and no stage may hold more memory than a rank has

    costs       what each layer takes, in the order of the layers: whole numbers, 0 or more (microseconds, say)
    stages      into how many stages; at least 1, and no more than there are layers

Both return how many layers each stage takes: [1, 5] is layer 0 for stage 0, and layers 1 to 5 for stage 1. Where
several cuts are equally good, return any of them.

There are many cuts: 60 layers go into 8 stages in 341,149,446 ways, and trying them all takes hours. But most of the
work would be the same again and again. Call best(p, j) the largest stage of the best cut of the first j layers into p
stages. Its last stage begins at some layer i, and what comes before is cut as well as can be, too:

    best(p, j)  =  the smallest, over all i < j, of  max(best(p-1, i), cost of layers i to j-1)

That is about stages * layers * layers steps, each done once, if you keep what you have found.

Try it in a notebook with check("partition"), or in a terminal with: dtcourse check partition
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate


def partition(costs: Sequence[int], stages: int) -> list[int]:
    """How many layers each stage takes, so that the largest stage is as small as can be.

        costs                    stages     returned       the stages take
        [6, 1, 1, 1, 1, 2]       2          [1, 5]         6, 6                 [3, 3] would take 8, 4
        [1, 2, 3, 4, 5]          2          [3, 2]         6, 9                 [4, 1] would take 10, 5
        [3, 3, 6, 1]             3          [2, 1, 1]      6, 6, 1              [1, 1, 2] is more even: 3, 3, 7
        [2, 2, 2, 2]             3          [1, 1, 2]      2, 2, 4              or [1, 2, 1], or [2, 1, 1]
        [0, 9, 0]                3          [1, 1, 1]      0, 9, 0              no stage is empty

    `costs` stays as it is.
    """
    # BEGIN SOLUTION
    return partition_within(costs, [0] * len(costs), 0, stages)
    # END SOLUTION


def partition_within(costs: Sequence[int], memory: Sequence[int], limit: int, stages: int) -> list[int]:
    """The same, of those cuts in which no stage holds more than `limit`.

        memory      what each layer holds: whole numbers, 0 or more (megabytes, say)
        limit       how much a stage may hold; exactly as much is fine

        costs           memory          limit     stages     returned
        [1, 1, 1, 9]    [4, 4, 4, 1]    100       2          [3, 1]        takes 3, 9; holds 12, 1
        [1, 1, 1, 9]    [4, 4, 4, 1]    9         2          [2, 2]        takes 2, 10; holds 8, 5
        [1, 1, 1, 9]    [4, 4, 4, 1]    7         2          ValueError    [2, 2] holds 8, 5, and [3, 1] holds 12, 1
        [1, 1, 1, 9]    [4, 4, 4, 1]    3         4          ValueError    layer 0 alone holds 4

    Raises ValueError if there is no such cut, with a message that has the limit in it: whoever reads it wants to know
    what could not be kept.
    """
    # BEGIN SOLUTION
    time, held = [0, *accumulate(costs)], [0, *accumulate(memory)]
    best: dict[int, tuple[int, list[int]]] = {0: (0, [])}  # layers cut so far -> their largest stage, and the sizes
    for _ in range(stages):
        best = {
            stop: min(ways)
            for stop in range(1, len(time))
            if (
                ways := [
                    (max(largest, time[stop] - time[start]), [*sizes, stop - start])
                    for start, (largest, sizes) in best.items()
                    if start < stop and held[stop] - held[start] <= limit
                ]
            )
        }
    if len(costs) not in best:
        raise ValueError(f"no cut into {stages} stages keeps each of them within {limit}")
    return best[len(costs)][1]
    # END SOLUTION
