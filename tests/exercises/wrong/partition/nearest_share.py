"""Cuts where the running total is nearest to its share."""
# message: returned \[1, 1, 2\]: the largest is stage 2, which takes 7, and 6 is possible\.\n

from itertools import accumulate, pairwise


def partition(costs, stages):
    total = [0, *accumulate(costs)]
    ends = [0]
    for stage in range(1, stages):
        places = range(ends[-1] + 1, len(costs) - stages + stage + 1)
        ends.append(min(places, key=lambda place: abs(total[place] - total[-1] * stage / stages)))
    return [stop - start for start, stop in pairwise([*ends, len(costs)])]


def partition_within(costs, memory, limit, stages):
    best = {0: (0, [])}
    for _ in range(stages):
        longer = {}
        for start, (largest, sizes) in best.items():
            for stop in range(start + 1, len(costs) + 1):
                way = max(largest, sum(costs[start:stop])), [*sizes, stop - start]
                if sum(memory[start:stop]) <= limit and way < longer.get(stop, (float("inf"),)):
                    longer[stop] = way
        best = longer
    if len(costs) not in best:
        raise ValueError(f"no stage may hold more than {limit}, and no cut keeps that")
    return best[len(costs)][1]
