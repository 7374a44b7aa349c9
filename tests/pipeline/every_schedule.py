"""The schedules that several tests go through."""

from hypothesis import strategies as st

from dtcourse.pipeline.actions import Schedule
from dtcourse.pipeline.schedules import gpipe, interleaved, one_f_one_b, pipedream
from dtcourse.pipeline.zero_bubble import zero_bubble_h1, zero_bubble_h2

ONE_STAGE_A_RANK = [gpipe, one_f_one_b, zero_bubble_h1, zero_bubble_h2, pipedream]


@st.composite
def any_schedule(draw) -> Schedule:
    """One of them, on up to 5 ranks."""
    ranks, groups = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    if draw(st.booleans()):
        return interleaved(ranks, ranks * groups, draw(st.integers(1, 3)))
    return draw(st.sampled_from(ONE_STAGE_A_RANK))(ranks, draw(st.integers(1, 9)))
