"""The best cut by time, refused if it does not keep within the limit."""
# message: raised ValueError: stage 0 holds more than 9; but there is a cut within 9, \[2, 2\]


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
                longer[stop] = min(way, longer.get(stop, way))
        best = longer
    sizes = best[len(costs)][1]
    for stage in range(stages if any(memory) else 0):
        if sum(memory[sum(sizes[:stage]) : sum(sizes[: stage + 1])]) > limit:
            raise ValueError(f"stage {stage} holds more than {limit}")
    return sizes
