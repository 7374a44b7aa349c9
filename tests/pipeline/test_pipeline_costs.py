"""What schedules cost: the formulas of the literature in their domains, and the simulation against another way."""

from fractions import Fraction
from functools import cache

import pytest
from every_schedule import any_schedule
from hypothesis import given, settings
from hypothesis import strategies as st

from dtcourse.pipeline.actions import Kind, Schedule
from dtcourse.pipeline.draw import chart
from dtcourse.pipeline.schedules import gpipe, interleaved, one_f_one_b, pipedream
from dtcourse.pipeline.simulate import Costs, in_flight, peak_activations, simulate
from dtcourse.pipeline.zero_bubble import zero_bubble_h1, zero_bubble_h2

SOME_COSTS = [(1, 1, 1), (3, 2, 1), (1, 4, 1), (5, 5, 4)]  # F, I, W with W <= F and W <= I


def bubble(schedule: Schedule, costs: tuple[int, int, int]) -> Fraction:
    """The share of idle time, exactly."""
    timeline = simulate(schedule, Costs(*costs))
    assert timeline.bubble == pytest.approx(sum(timeline.idle) / (len(schedule.ranks) * timeline.makespan))
    return Fraction(sum(timeline.idle), len(schedule.ranks) * timeline.makespan)


@pytest.mark.parametrize("stages", range(1, 9))
def test_gpipe_and_1f1b(stages):
    for microbatches in range(1, 33):
        for costs in ((1, 1, 1), (2, 3, 1)):
            formula = Fraction(stages - 1, microbatches + stages - 1)
            assert bubble(gpipe(stages, microbatches), costs) == formula
            assert bubble(one_f_one_b(stages, microbatches), costs) == formula
        assert peak_activations(gpipe(stages, microbatches)) == (microbatches,) * stages
        expected = tuple(min(stages - stage, microbatches) for stage in range(stages))
        assert peak_activations(one_f_one_b(stages, microbatches)) == expected


@pytest.mark.parametrize("chunks", [1, 2, 3, 4])
@pytest.mark.parametrize("ranks", range(1, 9))
def test_interleaved(ranks, chunks):
    for microbatches in range(ranks, 33, ranks):
        schedule = interleaved(ranks, microbatches, chunks)
        assert bubble(schedule, (1, 1, 1)) == Fraction(ranks - 1, chunks * microbatches + ranks - 1)
        many = 2 * (ranks - 1) + (chunks - 1) * ranks + 1
        assert peak_activations(schedule)[0] == (chunks * ranks if microbatches == ranks else many)


@pytest.mark.parametrize("costs", SOME_COSTS)
@pytest.mark.parametrize("stages", range(1, 9))
def test_zero_bubble(stages, costs):
    f, i, w = costs
    for microbatches in range(stages, 33):
        idle = simulate(zero_bubble_h1(stages, microbatches), Costs(*costs)).idle
        assert idle == ((stages - 1) * (f + i - w),) * stages
        if microbatches >= 2 * stages - 1:
            gaps = simulate(zero_bubble_h2(stages, microbatches), Costs(*costs)).gaps
            assert gaps[0] == max(gaps) == (stages - 1) * (f + i - 2 * w)


def test_zero_bubble_where_the_formula_ends():
    """F, I, W = 2, 2, 3: (P-1)(F+I-W) would be 3. With F < W <= I, no W can fill the wait for the first gradient."""
    assert simulate(zero_bubble_h1(4, 8), Costs(2, 2, 3)).idle == (6,) * 4
    assert simulate(zero_bubble_h1(4, 8), Costs(1, 3, 2)).idle == (3 * 3,) * 4


def test_zero_bubble_depends_on_the_clock():
    h1, h2 = simulate(zero_bubble_h1(4, 8)), simulate(zero_bubble_h2(4, 8))
    assert h1.makespan == h2.makespan == 27
    assert h2.gaps == (0, 0, 0, 0)
    assert all(spans[-1].end - spans[0].start == 24 for spans in h2.ranks)


@pytest.mark.parametrize("stages", range(1, 9))
def test_zero_bubble_memory(stages):
    for microbatches in range(1, 33):
        assert max(peak_activations(zero_bubble_h1(stages, microbatches))) == min(stages, microbatches)
        assert max(peak_activations(zero_bubble_h2(stages, microbatches))) == min(2 * stages - 1, microbatches)


def test_activations_in_flight():
    assert in_flight(one_f_one_b(2, 3).ranks[0]) == (1, 2, 2, 2, 2, 1)
    assert in_flight(zero_bubble_h1(2, 2).ranks[1]) == (1, 1, 2, 2, 2, 1)  # F0 I0 F1 I1 W0 W1


def test_messages_take_their_time():
    assert simulate(gpipe(2, 1), Costs(communication=3)).makespan == (1 + 3 + 1) + (2 + 3 + 2)
    assert simulate(interleaved(1, 1, 2), Costs(communication=3)).makespan == 1 + 1 + 2 + 2


def test_costs_a_stage():
    timeline = simulate(gpipe(2, 2), Costs(forward=[1, 3], input=[1, 1], weight=[0, 1]))
    assert [(start, end) for _, start, end in timeline.ranks[1]] == [(1, 4), (4, 7), (7, 9), (9, 11)]
    with pytest.raises(ValueError, match="3 values of weight for 2 stages"):
        simulate(gpipe(2, 2), Costs(weight=[1, 2, 3]))


def test_chart_in_other_units():
    assert chart(gpipe(2, 1), Costs(2, 1, 1)) == "rank 0  F0--- .. .. .. .. B0---\nrank 1  .. .. F0--- B0---"


@settings(deadline=None, max_examples=60)
@given(any_schedule(), st.data())
def test_the_simulation_is_the_longest_path(schedule, data):
    """The end of an action, asked for backwards: the latest end of what it waits for, and its own time."""
    cost = st.lists(st.integers(0, 9), min_size=schedule.stages, max_size=schedule.stages)
    costs = Costs(data.draw(cost), data.draw(cost), data.draw(cost), data.draw(st.integers(0, 3)))
    maker = {schedule.makes(action): action for actions in schedule.ranks for action in actions}
    before = {action: actions[index - 1] for actions in schedule.ranks for index, action in enumerate(actions) if index}

    @cache
    def end(action) -> int:
        start = end(before[action]) if action in before else 0
        for value in schedule.needs(action):
            sent = schedule.rank_of(value.stage) != schedule.rank_of(action.stage)
            start = max(start, end(maker[value]) + sent * costs.communication)
        kinds = {Kind.FORWARD: "forward", Kind.INPUT: "input", Kind.WEIGHT: "weight"}
        parts = (Kind.INPUT, Kind.WEIGHT) if action.kind == Kind.BACKWARD else (action.kind,)
        return start + sum(getattr(costs, kinds[part])[action.stage] for part in parts)

    for spans in simulate(schedule, costs).ranks:
        assert [span.end for span in spans] == [end(span.action) for span in spans]


def test_pipedream_costs_what_1f1b_costs():
    assert simulate(pipedream(3, 7)) == simulate(one_f_one_b(3, 7))
