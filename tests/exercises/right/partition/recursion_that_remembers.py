"""The recursion of the exercise, with a memory."""

from functools import cache


def partition(costs, stages):
    return search(tuple(costs), (0,) * len(costs), 0, stages)


def partition_within(costs, memory, limit, stages):
    sizes = search(tuple(costs), tuple(memory), limit, stages)
    if sizes is None:
        raise ValueError(f"out of memory: at most {limit} a stage")
    return sizes


def search(costs, memory, limit, stages):
    @cache
    def best(stage_count, layers):
        if stage_count == 0:
            return (0, ()) if layers == 0 else None
        ways = []
        for first in range(layers):
            before = best(stage_count - 1, first)
            if before is not None and sum(memory[first:layers]) <= limit:
                ways.append((max(before[0], sum(costs[first:layers])), (*before[1], layers - first)))
        return min(ways, default=None)

    found = best(stages, len(costs))
    return None if found is None else found[1]
