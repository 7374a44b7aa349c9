"""Infinity is not noticed: a cut that does not fit comes out."""
# message: returned \[1, 3\]; no cut into 2 stages keeps each within 7: raise ValueError


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
                fits = sum(memory[start:stop]) <= limit
                way = max(largest, sum(costs[start:stop]) if fits else float("inf")), [*sizes, stop - start]
                longer[stop] = min(way, longer.get(stop, way))
        best = longer
    return best[len(costs)][1]
