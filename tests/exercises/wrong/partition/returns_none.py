"""Returns None where there is no cut."""
# message: returned None; no cut into 2 stages keeps each within 7: raise ValueError


def partition(costs, stages):
    best = {0: (0, [])}
    for _ in range(stages):
        longer = {}
        for start, (largest, sizes) in best.items():
            for stop in range(start + 1, len(costs) + 1):
                way = max(largest, sum(costs[start:stop])), [*sizes, stop - start]
                longer[stop] = min(way, longer.get(stop, way))
        best = longer
    return best[len(costs)][1]


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
        return None
    return best[len(costs)][1]
