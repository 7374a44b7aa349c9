"""The tables are in an object in a file beside this one; returns a tuple."""

from frontier import Frontier


def sizes(frontier, layers, stages):
    for _ in range(stages):
        frontier.grow()
    ends = frontier.cuts[layers]
    return tuple(end - start for start, end in zip([0, *ends], ends, strict=False))


def partition(costs, stages):
    return sizes(Frontier(costs, lambda start, end: True), len(costs), stages)


def partition_within(costs, memory, limit, stages):
    try:
        return sizes(Frontier(costs, lambda start, end: sum(memory[start:end]) <= limit), len(costs), stages)
    except KeyError:
        raise ValueError(f"a stage would hold more than {limit}") from None
