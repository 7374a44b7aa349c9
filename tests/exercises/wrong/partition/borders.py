"""Where the stages begin, instead of how many layers they take."""
# message: returned \[0, 1\], which looks like the layers at which stages begin or end


def partition(costs, stages):
    sizes = partition_within(costs, [0] * len(costs), 0, stages)
    return [sum(sizes[:stage]) for stage in range(stages)]


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
