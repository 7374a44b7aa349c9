"""Tries every cut."""
# message: in 341,149,446 ways: rank 0 had not finished (.*\n)*.* Trying every cut never ends with many layers


def partition(costs, stages):
    if stages == 1:
        return [len(costs)]
    ways = []
    for size in range(1, len(costs) - stages + 2):
        rest = partition(costs[size:], stages - 1)
        ways.append([size, *rest])
    return min(ways, key=lambda sizes: max(times(costs, sizes)))


def times(costs, sizes):
    return [sum(costs[sum(sizes[:stage]) : sum(sizes[: stage + 1])]) for stage in range(len(sizes))]


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
