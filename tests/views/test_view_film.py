"""The film of a run: which chunk moved in which step, what every rank holds then, and how failures look."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated import ring_run

from dtcourse.events import COLLECTIVE, RECV, RETURN, SEND, Event, Line
from dtcourse.origins import provenance
from dtcourse.run import Run
from dtcourse.views.film import demand_watched, film


@settings(deadline=None)
@given(st.integers(1, 8), st.integers(1, 30))
def test_the_ring_moves_the_chunks_that_it_should(world: int, length: int) -> None:
    frames = film(ring_run(world, length)).frames
    assert len(frames) == 1 + 2 * (world - 1)
    for step, frame in enumerate(frames[1:], start=1):
        ahead = -(step - 1) if step < world else 1 - (step - world)
        for m in frame.messages:
            assert m.receiver == (m.sender + 1) % world
            if m.bytes:
                assert m.chunk == (m.sender + ahead) % world
    assert all(chunk.complete or chunk.start == chunk.stop for row in frames[-1].rows for chunk in row)


def test_after_the_first_phase_rank_j_owns_chunk_j_plus_1() -> None:
    frame = film(ring_run(4, 10)).frames[3]
    complete = {(rank, c) for rank, row in enumerate(frame.rows) for c, chunk in enumerate(row) if chunk.complete}
    assert complete == {(0, 1), (1, 2), (2, 3), (3, 0)}


def test_state_after_step_one() -> None:
    frame = film(ring_run(4, 10)).frames[1]
    assert frame.rows[1][0].pieces[0].counts == (1, 1, 0, 0)
    assert frame.rows[0][3].pieces[0].counts == (1, 0, 0, 1)
    assert frame.rows[0][0].pieces[0].counts == (1, 0, 0, 0)
    assert frame.title == "step 1"
    assert "rank 1 sends chunk 1 to rank 2" in frame.caption


def test_the_published_mistake_is_shown_as_it_went() -> None:
    frames = film(ring_run(4, 10, gather=-1)).frames
    assert any("was complete and is overwritten" in note for frame in frames for note in frame.notes)
    assert not all(chunk.complete for row in frames[-1].rows for chunk in row)
    assert frames[-1].caption.endswith(" 0 of 16 chunks complete (every rank counted once).")


def test_of_a_right_run_nothing_is_noted() -> None:
    """Notes are red. A reduce-scatter ends with a quarter of its chunks complete, as it should."""
    run = ring_run(4, 10)
    half = Run(4, events=[e for e in run.events if e.step <= 3 and e.kind != RETURN])
    ends = [dataclasses.replace(e, kind=RETURN, op="return", step=0) for e in run.events if e.step == 4]
    half.events += [e for e in ends if e.payload is not None and e.peer == (e.rank + 1) % 4]
    for shown, complete in ((film(run), 16), (film(half), 4), (film(ring_run(4, 10), running=True), 16)):
        assert [frame.notes for frame in shown.frames] == [()] * len(shown.frames)
        assert f" {complete} of 16 chunks complete" in shown.frames[-1].caption
    begun = film(Run(4, events=[e for e in run.events if not e.step or e.step == 1]), running=True).frames[0]
    assert "complete" not in begun.caption


def test_the_second_half_alone_begins_half_way_and_is_decoded() -> None:
    run = ring_run(4, 8)
    second = [dataclasses.replace(e, step=max(e.step - 3, 0)) for e in run.events if e.step > 3 or e.kind == RETURN]
    shown = film(Run(4, events=second))
    assert shown.decoded
    complete = {(r, c) for r, row in enumerate(shown.frames[0].rows) for c, chunk in enumerate(row) if chunk.complete}
    assert complete == {(0, 1), (1, 2), (2, 3), (3, 0)}
    assert [m.chunk for m in shown.frames[1].messages] == [1, 2, 3, 0]
    assert all(chunk.complete for row in shown.frames[-1].rows for chunk in row)


def test_what_never_arrived() -> None:
    shown = film(ring_run(4, 10, lost_after=2))
    last = shown.frames[-1]
    assert last.step == 3
    assert [m.arrived for m in last.messages] == [False] * 4
    assert "rank 0 waits to receive from rank 3" in last.caption.lower()
    assert last.rows == shown.frames[2].rows, "nothing arrived, so nothing changed"
    assert shown.failure


def test_all_receive_first() -> None:
    receives = [
        Event(r, 0, RECV, "recv", (0, 1), peer=1 - r, posted=r, arguments=(provenance(2, r, 4),)) for r in (0, 1)
    ]
    frames = film(Run(2, events=receives, failure="Deadlock")).frames
    assert [frame.title for frame in frames] == ["start", "stuck"]
    assert frames[1].caption.startswith("Nothing moves any more: rank 0 waits to receive from rank 1")


def test_of_a_running_run_only_what_arrived_is_a_frame() -> None:
    run = ring_run(4, 10, lost_after=2)
    assert len(film(run, running=True).frames) == 3
    assert not film(run, running=True).frames[-1].waits


def test_a_held_rank_shows_its_state() -> None:
    run = ring_run(3, 6)
    first = [e for e in run.events if e.step == 1]
    after = {r: next(e for e in run.events if e.rank == r and e.step == 2).arguments for r in range(3)}
    held = [Event(r, 9, "held", "held", posted=10**9, step=2, arguments=after[r]) for r in range(3)]
    shown = film(Run(3, events=first + held), running=True)
    assert len(shown.frames) == 2
    assert shown.frames[1].rows == film(run).frames[1].rows


def test_a_run_that_has_not_begun() -> None:
    shown = film(Run(4, events=[]), running=True)
    assert [frame.title for frame in shown.frames] == ["start"]


def test_a_collective_is_a_frame_between_the_steps() -> None:
    run = ring_run(2, 4)
    total = provenance(2, 0, 4) + provenance(2, 1, 4)
    end = max(e.posted for e in run.events) + 5
    run_events = [e for e in run.events if e.kind != RETURN]
    calls = [
        Event(r, 50, COLLECTIVE, "all_reduce", (0, 1), step=3, posted=end, ended=end + 1, arguments=(total,))
        for r in (0, 1)
    ]
    returns = [Event(r, 51, RETURN, "return", posted=end + 2, ended=end + 2, arguments=(2 * total,)) for r in (0, 1)]
    frames = film(Run(2, events=run_events + calls + returns)).frames
    assert [frame.title for frame in frames] == ["start", "step 1", "step 2", "all_reduce"]
    assert frames[-1].messages == ()
    assert frames[-1].rows[0][0].pieces[0].counts == (2, 2)
    assert "ranks 0, 1 count 2 times" in frames[-1].notes[0]


def test_a_receive_posted_early_has_seen_an_older_state() -> None:
    """Rank 1 posts both receives at once; its state after step 1 is the one that its next send saw."""
    mine, summed = provenance(2, 1, 2), provenance(2, 1, 2) + provenance(2, 0, 2)
    other, group = provenance(2, 0, 2), (0, 1)
    events = [
        Event(0, 0, SEND, "send", group, 0, 1, step=1, posted=1, ended=10, payload=other, arguments=(other,)),
        Event(1, 0, RECV, "recv", group, 0, 0, step=1, posted=1, ended=10, arguments=(mine,)),
        Event(1, 1, RECV, "recv", group, 1, 0, step=3, posted=2, ended=30, arguments=(mine,)),
        Event(1, 2, SEND, "send", group, 0, 0, step=2, posted=12, ended=20, payload=summed, arguments=(summed,)),
        Event(0, 1, RECV, "recv", group, 0, 1, step=2, posted=11, ended=20, arguments=(other,)),
        Event(0, 2, SEND, "send", group, 1, 1, step=3, posted=21, ended=30, payload=other, arguments=(other,)),
    ]
    assert film(Run(2, events=events)).frames[1].rows[1][0].pieces[0].counts == (1, 1)


def test_lines_of_code() -> None:
    shown = film(ring_run(4, 10))
    number, who = shown.frames[1].lines[0]
    assert who == "all ranks"
    assert shown.lines[number].place == "ring.py, line 12"
    assert shown.lines[number].text.strip().startswith("exchange(")
    assert len(shown.lines[number].before) == 1


def test_at_finds_the_frame_of_a_step() -> None:
    shown = film(ring_run(4, 10))
    assert [shown.at(step) for step in (0, 3, 6, 99)] == [0, 3, 6, 6]


def test_a_run_that_was_not_watched_says_what_to_do() -> None:
    run = ring_run(4, 10)
    blind = [dataclasses.replace(e, arguments=(), payload=None) for e in run.events]
    with pytest.raises(ValueError, match="watch=True"):
        demand_watched(Run(4, events=blind))


def test_sixteen_ranks_and_floats() -> None:
    shown = film(ring_run(16, 40, floats=True))
    assert not shown.decoded
    assert shown.frames[1].messages[3].chunk == 3
    assert len(shown.frames) == 31


def test_an_unknown_line_is_no_line() -> None:
    run = ring_run(2, 2)
    shown = film(Run(2, events=[dataclasses.replace(e, line=None) for e in run.events]))
    assert shown.frames[1].lines == ()
    gone = film(Run(2, events=[dataclasses.replace(e, line=Line("gone.py", 7, "f")) for e in run.events]))
    assert gone.lines[0].place == "gone.py, line 7"
    assert gone.lines[0].text == ""


def test_a_step_that_never_came_is_the_end() -> None:
    receives = [
        Event(r, 0, RECV, "recv", (0, 1), peer=1 - r, posted=r, arguments=(provenance(2, r, 4),)) for r in (0, 1)
    ]
    shown = film(Run(2, events=receives, failure="Deadlock"))
    assert shown.frames[shown.at(3)].title == "stuck"
