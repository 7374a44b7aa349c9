"""Balanced stages: optimal against trying every cut, within a bound on memory, and quick for a thousand layers."""

import math
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtcourse.pipeline.partition import partition


def every_cut(layers: int, stages: int) -> list[tuple[range, ...]]:
    """All ways to cut layers into stages of at least one."""
    return [
        tuple(range(start, end) for start, end in pairwise((0, *inner, layers)))
        for inner in combinations(range(1, layers), stages - 1)
    ]


def largest(costs, cut) -> float:
    return max(sum(costs[layer] for layer in stage) for stage in cut)


@st.composite
def layers_and_stages(draw, number):
    costs = draw(st.lists(number, min_size=1, max_size=12))
    return costs, draw(st.integers(1, min(4, len(costs))))


@settings(deadline=None, max_examples=300)
@given(layers_and_stages(st.integers(0, 20)))
def test_no_cut_is_better(case):
    costs, stages = case
    cut = partition(costs, stages)
    cuts = every_cut(len(costs), stages)
    assert cut in cuts
    assert largest(costs, cut) == min(largest(costs, other) for other in cuts)


@settings(deadline=None, max_examples=100)
@given(layers_and_stages(st.floats(0, 1e6)))
def test_no_cut_is_better_in_measured_times(case):
    costs, stages = case
    best = min(largest(costs, other) for other in every_cut(len(costs), stages))
    assert largest(costs, partition(costs, stages)) == pytest.approx(best, rel=1e-12, abs=1e-9)


@settings(deadline=None, max_examples=300)
@given(layers_and_stages(st.tuples(st.integers(0, 20), st.integers(0, 9))), st.integers(0, 40))
def test_no_cut_within_the_bound_is_better(case, limit):
    layers, stages = case
    costs, memory = [time for time, _ in layers], [size for _, size in layers]
    cuts = [cut for cut in every_cut(len(layers), stages) if largest(memory, cut) <= limit]
    if not cuts:
        with pytest.raises(ValueError, match="more than a stage may hold|no cut into"):
            partition(costs, stages, memory, limit)
        return
    cut = partition(costs, stages, memory, limit)
    assert cut in cuts
    assert largest(costs, cut) == min(largest(costs, other) for other in cuts)


def test_the_example_of_the_file():
    costs = [6, 1, 1, 1, 1, 2]
    assert partition(costs, 2) == (range(0, 1), range(1, 6))
    assert largest(costs, (range(0, 3), range(3, 6))) == 8


def test_memory_moves_the_cut():
    assert partition([1, 1, 1, 9], 2) == (range(0, 3), range(3, 4))
    assert partition([1, 1, 1, 9], 2, memory=[4, 4, 4, 1], limit=9) == (range(0, 2), range(2, 4))


def test_a_stage_that_just_fits():
    """0.1 + 0.2 + 0.3 - 0.1 is not 0.2 + 0.3 in floating point; the bound is exact all the same."""
    assert partition([1, 1, 1], 2, memory=[0.1, 0.2, 0.3], limit=0.5) == (range(0, 1), range(1, 3))


def test_a_thousand_layers_and_64_stages():
    """Equal layers, where the best is known: 1000 = 64 * 15 + 40, so a stage of 16 there must be."""
    cut = partition([3] * 1000, 64)
    assert [layer for stage in cut for layer in stage] == list(range(1000))
    assert largest([3] * 1000, cut) == 48


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (([1, 2], 3), "2 layers into 3 stages: each stage needs at least one"),
        (([1, 2], 0), "2 layers into 0 stages"),
        (([], 1), "0 layers into 1 stages"),
        (([1, -2], 1), "the cost of layer 1 is -2"),
        (([1, math.nan], 1), "the cost of layer 1 is nan"),
        (([1, 2], 1, [1, math.inf], 3), "the memory of layer 1 is inf"),
        (([1, 2], 1, [1], 3), "2 costs, but the memory of 1 layers"),
        (([1, 2], 1, None, 3), "a limit needs the memory of each layer"),
        (([1, 2], 2, [1, 5], 4), "layer 1 alone needs 5, more than a stage may hold \\(4\\)"),
        (([1, 2, 3], 2, [3, 3, 3], 5), "no cut into 2 stages keeps each within 5; it takes 3 stages"),
    ],
)
def test_what_cannot_be_cut(arguments, says):
    with pytest.raises(ValueError, match=says):
        partition(*arguments)
