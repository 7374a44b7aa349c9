"""Leaves it to Python to complain."""
# message: min\(\) .*empty.*\. There is no cut, so that is right; but the message does not say which limit: 7


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
    def best(layers, stages):
        if stages == 0:
            return (0, []) if layers == 0 else (float("inf"), [])
        ways = []
        for start in range(stages - 1, layers):
            largest, sizes = found[start, stages - 1]
            if sum(memory[start:layers]) <= limit and largest < float("inf"):
                ways.append((max(largest, sum(costs[start:layers])), [*sizes, layers - start]))
        return min(ways) if layers == len(costs) and stages == last else min(ways, default=(float("inf"), []))

    found, last = {}, stages
    for count in range(stages + 1):
        for layers in range(len(costs) + 1):
            if layers < len(costs) or count in (0, last):
                found[layers, count] = best(layers, count)
    return found[len(costs), last][1]
