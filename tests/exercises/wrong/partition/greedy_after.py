"""Fills each stage until it has its share of the whole."""
# message: the largest is stage 0, which takes 10, and 9 is possible. Each stage is filled up to its share


def partition(costs, stages):
    share, sizes, taken = sum(costs) / stages, [0], 0
    for layer, cost in enumerate(costs):
        sizes[-1] += 1
        taken += cost
        if len(sizes) < stages and (taken >= share or len(costs) - layer - 1 == stages - len(sizes)):
            sizes, taken = [*sizes, 0], 0
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
