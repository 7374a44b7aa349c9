"""The checker on schedules that are wrong, and on messages that deadlock; the versions of PipeDream."""

import graphlib
import inspect
import pickle
from dataclasses import replace
from itertools import pairwise

import pytest
from every_schedule import any_schedule
from hypothesis import given, settings
from hypothesis import strategies as st

from dtcourse.pipeline.actions import Action, Kind, Schedule, backward, forward, input_gradient, weight_gradient
from dtcourse.pipeline.check import check
from dtcourse.pipeline.lowering import Exchange, Transfer, check_messages, lower
from dtcourse.pipeline.order import ScheduleError
from dtcourse.pipeline.schedules import gpipe, one_f_one_b, pipedream
from dtcourse.pipeline.versions import versions_kept, weight_versions
from dtcourse.pipeline.zero_bubble import zero_bubble_h1


def edited(schedule: Schedule, rank: int, edit) -> Schedule:
    """The schedule with the list of one rank changed by `edit(list)`."""
    actions = list(schedule.ranks[rank])
    edit(actions)
    return replace(schedule, ranks=(*schedule.ranks[:rank], tuple(actions), *schedule.ranks[rank + 1 :]))


def swap(a: int, b: int):
    def edit(actions) -> None:
        actions[a], actions[b] = actions[b], actions[a]

    return edit


# rank 0: F0 F1 B0 B1, rank 1: F0 B0 F1 B1; of zero bubble, rank 1: F0 I0 F1 I1 W0 W1
PIPE, ZERO = one_f_one_b(2, 2), zero_bubble_h1(2, 2)
WRONG = {
    "a forward missing": (edited(PIPE, 0, lambda a: a.pop(1)), 0, "rank 0: F1 of stage 0 is missing"),
    "a backward missing": (edited(PIPE, 1, lambda a: a.pop()), 1, "rank 1: B1 of stage 1 is missing"),
    "a backward twice": (edited(PIPE, 1, lambda a: a.append(a[-1])), 1, "B1 of stage 1 is 2 times"),
    "no weight half": (edited(ZERO, 1, lambda a: a.pop()), 1, "W1 of stage 1 is missing"),
    "no input half": (edited(ZERO, 1, lambda a: a.remove(input_gradient(1, 1))), 1, "I1 of stage 1 is missing"),
    "whole and half": (edited(ZERO, 0, lambda a: a.append(backward(0, 0))), 0, "B0 of stage 0 and also I0 .* twice"),
    "backward before forward": (
        edited(PIPE, 1, swap(0, 1)),
        1,
        "rank 1, action 0 \\(B0 of stage 1\\): needs the activation of micro-batch 0 from stage 1, "
        "which this rank makes only later, in action 1",
    ),
    "weight half before input half": (
        edited(ZERO, 1, swap(3, 5)),
        1,
        "action 3 \\(W1 of stage 1\\): needs the gradient of micro-batch 1 from stage 1, "
        "which this rank makes only later",
    ),
    "on the rank of another": (edited(PIPE, 1, lambda a: a.append(forward(0, 0))), 1, "stage 0 lives on rank 0"),
    "no such micro-batch": (edited(PIPE, 0, lambda a: a.append(forward(2, 0))), 0, "no micro-batch 2; .* 0 to 1"),
    "no such stage": (edited(PIPE, 0, lambda a: a.append(forward(0, 2))), 0, "no stage 2; 0 to 1"),
    "no such kind": (edited(PIPE, 0, lambda a: a.append(Action("X", 0, 0))), 0, "no kind 'X'"),
    "each waits for the other": (
        edited(edited(PIPE, 0, swap(1, 2)), 1, swap(1, 2)),  # rank 0: F0 B0 F1 B1, rank 1: F0 F1 B0 B1
        0,
        "wait for each other and can never go on:\n"
        "  rank 0, action 1 \\(B0 of stage 0\\): needs the gradient of micro-batch 0 from stage 1, "
        "which rank 1 makes in its action 2\n"
        "  rank 1, action 1 \\(F1 of stage 1\\): needs the activation of micro-batch 1 from stage 0, "
        "which rank 0 makes in its action 2",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_schedule_is_named(name):
    schedule, rank, says = WRONG[name]
    with pytest.raises(ScheduleError, match=says) as caught:
        check(schedule)
    assert caught.value.rank == rank
    assert caught.value.action is not None


def test_what_is_no_action_is_named():
    with pytest.raises(ScheduleError, match=r"rank 1, action 0: \('F', 0\) is no Action: forward\(microbatch, stage\)"):
        check(Schedule(((forward(0, 0), backward(0, 0)), (("F", 0),)), 2, 1))


def test_the_error_travels_between_processes():
    error = ScheduleError("what is missing", 3, forward(1, 3))
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.rank, again.action) == ("what is missing", 3, forward(1, 3))


def acyclic(schedule: Schedule) -> bool:
    """Whether the actions can be put into one order: another way to ask."""
    maker = {schedule.makes(action): action for actions in schedule.ranks for action in actions}
    graph = {action: {maker[v] for v in schedule.needs(action)} for actions in schedule.ranks for action in actions}
    for actions in schedule.ranks:
        for before, after in pairwise(actions):
            graph[after].add(before)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError:
        return False
    return True


@settings(deadline=None, max_examples=150)
@given(any_schedule(), st.data())
def test_shuffled_schedules_pass_just_when_an_order_exists(schedule, data):
    """Also: whatever can be ordered runs as messages, on the strictest transport (the last thing that `check` asks)."""
    schedule = replace(schedule, asynchronous=False)  # what can be ordered may still be needlessly stale
    for _ in range(data.draw(st.integers(0, 3))):
        rank = data.draw(st.integers(0, len(schedule.ranks) - 1))
        place = st.integers(0, len(schedule.ranks[rank]) - 1)
        schedule = edited(schedule, rank, swap(data.draw(place), data.draw(place)))
    if acyclic(schedule):
        check(schedule)
    else:
        with pytest.raises(ScheduleError, match="only later|wait for each other"):
            check(schedule)


# -- messages ----------------------------------------------------------------------------------------------------------


def test_the_table_of_lower():
    def mark(transfer: Transfer, rank: int) -> str:
        return f"{'>' if transfer.source == rank else '<'}{transfer.value.name[0]}{transfer.value.microbatch}"

    rows = []
    for rank, lines in enumerate(lower(one_f_one_b(2, 2))):
        row = [
            " ".join(mark(one, rank) for one in line.transfers)
            if isinstance(line, Exchange)
            else f"{line.kind}{line.microbatch}"
            for line in lines
        ]
        rows.append(f"rank {rank}  " + "  ".join(row))
    assert rows == [line for line in inspect.getdoc(lower).splitlines() if line.startswith("rank ")]


@settings(deadline=None, max_examples=60)
@given(any_schedule())
def test_lowering_sends_what_is_needed_in_one_order_at_both_ends(schedule):
    programs = lower(schedule)
    sent: dict[tuple[int, int], list[Transfer]] = {}
    received: dict[tuple[int, int], list[Transfer]] = {}
    for rank, lines in enumerate(programs):
        assert tuple(line for line in lines if isinstance(line, Action)) == schedule.ranks[rank]
        there = set()
        for line in lines:
            if isinstance(line, Exchange):
                for one in line.sends(rank):
                    assert one.value in there, "sent before it was made"
                    sent.setdefault((rank, one.to), []).append(one)
                for one in line.receives(rank):
                    there.add(one.value)
                    received.setdefault((one.source, rank), []).append(one)
            else:
                assert there.issuperset(schedule.needs(line)), "used before it came"
                there.add(schedule.makes(line))
    assert sent == received


def apart(rank: int, line: Action | Exchange) -> tuple[Action | Exchange, ...]:
    """An exchange in the naive way: first the sends, then the receives."""
    if isinstance(line, Action):
        return (line,)
    return tuple(Exchange(some) for some in (line.sends(rank), line.receives(rank)) if some)


def test_sends_and_receives_apart_deadlock():
    """In 1F1B two neighbours send to each other at once: the forward's activation one way, the gradient the other."""
    programs = lower(one_f_one_b(2, 3))
    check_messages(programs)
    naive = tuple(tuple(part for line in lines for part in apart(rank, line)) for rank, lines in enumerate(programs))
    says = (
        "deadlocks:\n"
        "  rank 0, before B1 of stage 0: waits for the activation of micro-batch 2 from stage 0, rank 0 to rank 1\n"
        "  rank 1, before F2 of stage 1: waits for the gradient of micro-batch 1 from stage 1, rank 1 to rank 0"
    )
    with pytest.raises(ScheduleError, match=says):
        check_messages(naive)


def test_a_message_that_nobody_sends():
    rank_0, rank_1 = lower(gpipe(2, 1))
    with pytest.raises(ScheduleError, match="rank 1, before F0 of stage 1: waits for the activation of micro-batch 0"):
        check_messages((rank_0[:1], rank_1))


# -- weight versions ---------------------------------------------------------------------------------------------------


def test_the_table_of_weight_versions():
    rows = [
        f"stage {stage}  " + "  ".join(f"{one.forward} {one.backward}" for one in versions)
        for stage, versions in enumerate(weight_versions(pipedream(3, 4)))
    ]
    assert rows == [line for line in inspect.getdoc(weight_versions).splitlines() if line.startswith("stage ")]


@pytest.mark.parametrize("stages", range(1, 9))
@pytest.mark.parametrize("microbatches", [1, 2, 5, 16, 32])
def test_pipedream_is_as_stale_as_it_says(stages, microbatches):
    schedule = pipedream(stages, microbatches)
    for stage, versions in enumerate(weight_versions(schedule)):
        late = stages - 1 - stage
        assert [one.backward for one in versions] == list(range(microbatches))
        assert [one.forward for one in versions] == [max(0, m - late) for m in range(microbatches)]
        assert max(one.staleness for one in versions) == min(late, microbatches - 1)
    if microbatches >= stages:
        assert versions_kept(schedule)[-1] == 1
    if microbatches >= 2 * stages:
        assert versions_kept(schedule) == tuple(stages - stage for stage in range(stages))


def test_gradients_older_than_they_have_to_be():
    with pytest.raises(ScheduleError, match="F2 of stage 0 meets .* 0 and .* version 2: .* 2 .* where 1 would"):
        check(replace(gpipe(2, 4), asynchronous=True))
    with pytest.raises(ScheduleError, match="the backward of F0 of stage 0 is in two"):
        check(replace(zero_bubble_h1(2, 4), asynchronous=True))


def test_synchronous_schedules_have_one_version():
    assert {one for stage in weight_versions(one_f_one_b(3, 5)) for one in stage} == {(0, 0)}
    assert versions_kept(one_f_one_b(3, 5)) == (1, 1, 1)


def test_kinds_are_the_letters():
    assert [str(kind) for kind in Kind] == ["F", "B", "I", "W"]
    assert str(weight_gradient(2, 1)) == "W2 of stage 1"
