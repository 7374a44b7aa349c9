"""The schedules as data: their tables, their order, and that the checker passes every one of them."""

import inspect
import textwrap

import pytest
from every_schedule import ONE_STAGE_A_RANK

from dtcourse.pipeline import schedules, zero_bubble
from dtcourse.pipeline.actions import Kind, Schedule
from dtcourse.pipeline.check import check
from dtcourse.pipeline.draw import chart
from dtcourse.pipeline.schedules import gpipe, interleaved, one_f_one_b, pipedream
from dtcourse.pipeline.zero_bubble import zero_bubble_h1, zero_bubble_h2


def table(documented) -> str:
    """The rows of the table in a docstring."""
    rows = [line for line in inspect.getdoc(documented).splitlines() if line.startswith("rank ")]
    return "\n".join(rows)


@pytest.mark.parametrize(
    "schedule",
    [gpipe(3, 4), one_f_one_b(3, 4), interleaved(2, 4, 2), zero_bubble_h1(3, 5), zero_bubble_h2(3, 5)],
    ids=["gpipe", "one_f_one_b", "interleaved", "zero_bubble_h1", "zero_bubble_h2"],
)
def test_the_tables_of_the_docstrings(schedule, request):
    name = request.node.callspec.id
    assert chart(schedule) == table(getattr(schedules, name, None) or getattr(zero_bubble, name))


def test_one_f_one_b_from_the_figure_of_megatron():
    """P = 4, M = 8, as the paper draws it: three forwards ahead on the first rank, none on the last."""
    expected = """
        F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7
        F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7
        F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7
        F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7
    """
    rows = [" ".join(f"{kind}{microbatch}" for kind, microbatch, _ in rank) for rank in one_f_one_b(4, 8).ranks]
    assert rows == textwrap.dedent(expected).strip().splitlines()


@pytest.mark.parametrize("make", ONE_STAGE_A_RANK)
@pytest.mark.parametrize("stages", range(1, 9))
def test_every_schedule_is_right(make, stages):
    for microbatches in range(1, 33):
        schedule = make(stages, microbatches)
        check(schedule)
        assert len(schedule.ranks) == schedule.stages == stages
        assert schedule.microbatches == microbatches
        assert schedule.asynchronous == (make is pipedream)


@pytest.mark.parametrize("chunks", [1, 2, 3])
@pytest.mark.parametrize("ranks", range(1, 9))
def test_every_interleaved_schedule_is_right(ranks, chunks):
    for microbatches in range(ranks, 33, ranks):
        schedule = interleaved(ranks, microbatches, chunks)
        check(schedule)
        assert schedule.stages == ranks * chunks


def test_pipedream_has_the_order_of_1f1b():
    assert pipedream(4, 9).ranks == one_f_one_b(4, 9).ranks


def test_backwards_are_whole_or_in_two():
    def kinds(schedule: Schedule) -> set[Kind]:
        return {action.kind for actions in schedule.ranks for action in actions}

    assert kinds(gpipe(2, 3)) == kinds(one_f_one_b(2, 3)) == {Kind.FORWARD, Kind.BACKWARD}
    assert kinds(zero_bubble_h1(2, 3)) == kinds(zero_bubble_h2(2, 3)) == {Kind.FORWARD, Kind.INPUT, Kind.WEIGHT}


@pytest.mark.parametrize(
    ("microbatches", "says"), [(6, "6 micro-batches are no multiple of 4 ranks; .* into 4 or 8"), (3, "into 4$")]
)
def test_interleaved_refuses_other_numbers_of_micro_batches(microbatches, says):
    with pytest.raises(ValueError, match=says):
        interleaved(4, microbatches, 2)


@pytest.mark.parametrize("make", ONE_STAGE_A_RANK)
@pytest.mark.parametrize(("stages", "microbatches"), [(0, 4), (4, 0), (2, 2.0), (-1, 1), (True, 1)])
def test_sizes_that_are_none_are_refused(make, stages, microbatches):
    with pytest.raises(ValueError, match="must be a whole number, at least 1"):
        make(stages, microbatches)
