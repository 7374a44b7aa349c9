"""Tries bounds: for each, stages are filled up to it; the smallest that takes few enough stages is the best."""


def partition(costs, stages):
    return partition_within(costs, [0] * len(costs), 0, stages)


def partition_within(costs, memory, limit, stages):
    low, high = max(costs), sum(costs)
    if max(memory) > limit or len(fill(costs, memory, high, limit)) > stages:
        raise ValueError(f"{stages} stages of {limit} are not enough")
    while low < high:
        bound = (low + high) // 2
        if len(fill(costs, memory, bound, limit)) <= stages:
            high = bound
        else:
            low = bound + 1
    sizes = fill(costs, memory, low, limit)
    while len(sizes) < stages:
        longest = sizes.index(max(sizes))
        sizes[longest : longest + 1] = [1, sizes[longest] - 1]
    return sizes


def fill(costs, memory, bound, limit):
    sizes, taken, held = [0], 0, 0
    for cost, size in zip(costs, memory, strict=True):
        if taken + cost > bound or held + size > limit:
            sizes, taken, held = [*sizes, 0], 0, 0
        sizes[-1], taken, held = sizes[-1] + 1, taken + cost, held + size
    return sizes
