"""The last layer is in no stage."""
# message: returned \[1, 4\], which has 5 layers in all, and there are 6


def partition(costs, stages):
    sizes = partition_within(costs, [0] * len(costs), 0, stages)
    return [*sizes[:-1], sizes[-1] - 1]


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
