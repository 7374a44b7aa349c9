"""A table of values and a table of dividers, read from the end; NumPy integers come out."""

import numpy as np

FAR = 10**18


def partition(costs, stages):
    return partition_within(costs, [0] * len(costs), 0, stages)


def partition_within(costs, memory, limit, stages):
    layers = len(costs)
    time, held = (np.concatenate([[0], np.cumsum(numbers)]) for numbers in (costs, memory))
    value = np.full((stages + 1, layers + 1), FAR)
    divider = np.zeros((stages + 1, layers + 1), dtype=int)
    value[0, 0] = 0
    for p in range(1, stages + 1):
        for j in range(1, layers + 1):
            ways = np.maximum(value[p - 1, :j], time[j] - time[:j])
            ways = np.where(held[j] - held[:j] <= limit, ways, FAR)
            divider[p, j] = ways.argmin()
            value[p, j] = ways.min()
    if value[stages, layers] == FAR:
        raise ValueError(f"more than {limit} in each cut")
    ends = [layers]
    for p in range(stages, 0, -1):
        ends.insert(0, divider[p, ends[0]])
    return np.diff(ends)
