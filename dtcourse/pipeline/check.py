"""Is a schedule right? Every action once and on its rank, everything made before it is needed, no deadlock as messages;
in an asynchronous one, no gradient older than it has to be.

`check(schedule)` says nothing if it is; otherwise it raises a `ScheduleError` that names the rank, the action, and what
is missing. What it promises: run over messages, the schedule ends, and each weight gets the gradient of every
micro-batch exactly once.
"""

from __future__ import annotations

from collections import Counter

from .actions import Action, Kind, Schedule
from .lowering import check_messages, lower
from .order import ScheduleError, in_order
from .versions import weight_versions


def check(schedule: Schedule) -> None:
    """Raise `ScheduleError` unless the schedule computes every gradient of every micro-batch, and ends.

    Raises TypeError for what is no `Schedule`.
    """
    if not isinstance(schedule, Schedule):
        how = "Schedule(ranks, stages=..., microbatches=...) makes one of the lists of all ranks"
        raise TypeError(f"a {type(schedule).__name__} is no schedule: {how}")
    check_places(schedule)
    check_each_once(schedule)
    for _ in in_order(schedule):
        pass
    check_messages(lower(schedule))
    if schedule.asynchronous:
        check_staleness(schedule)


def check_places(schedule: Schedule) -> None:
    """Every action is of a kind, a micro-batch and a stage that exist, on the rank of that stage."""
    for rank, actions in enumerate(schedule.ranks):
        for index, action in enumerate(actions):
            if not isinstance(action, Action):
                how = "forward(microbatch, stage) makes one, and so on (dtcourse.pipeline.actions)"
                raise ScheduleError(f"rank {rank}, action {index}: {action!r} is no Action: {how}", rank)
            where = f"rank {rank}, action {index} ({action}): "
            if action.kind not in set(Kind):
                raise ScheduleError(f"{where}no kind {action.kind!r}; there are F, B, I and W", rank, action)
            if not 0 <= action.microbatch < schedule.microbatches:
                allowed = f"micro-batches are 0 to {schedule.microbatches - 1}"
                raise ScheduleError(f"{where}no micro-batch {action.microbatch}; {allowed}", rank, action)
            if not 0 <= action.stage < schedule.stages:
                raise ScheduleError(f"{where}no stage {action.stage}; 0 to {schedule.stages - 1}", rank, action)
            home = schedule.rank_of(action.stage)
            if home != rank:
                raise ScheduleError(f"{where}stage {action.stage} lives on rank {home}", rank, action)


def check_each_once(schedule: Schedule) -> None:
    """For each stage and micro-batch one F, and either one B or one I and one W."""
    times = Counter(action for actions in schedule.ranks for action in actions)
    for stage in range(schedule.stages):
        rank = schedule.rank_of(stage)
        for microbatch in range(schedule.microbatches):
            f, b, i, w = (Action(kind, microbatch, stage) for kind in Kind)
            halves = (i, w) if times[i] or times[w] else (b,)
            for action in (f, *halves):
                if times[action] != 1:
                    seen = f"{times[action]} times" if times[action] else "missing"
                    raise ScheduleError(
                        f"rank {rank}: {action} is {seen}; each action must be there once", rank, action
                    )
            if times[b] and halves != (b,):
                wrong = f"rank {rank}: {b} and also {i} or {w}: its gradient would count twice"
                raise ScheduleError(wrong, rank, b)


def check_staleness(schedule: Schedule) -> None:
    """In an asynchronous schedule, stage s of S lets at most S-1-s updates pass between a forward and its backward.

    That many are on their way to the last stage and back. A forward that starts earlier only sees older weights.
    """
    for stage, versions in enumerate(weight_versions(schedule)):
        rank, most = schedule.rank_of(stage), schedule.stages - 1 - stage
        for microbatch, version in enumerate(versions):
            action = Action(Kind.FORWARD, microbatch, stage)
            if Action(Kind.BACKWARD, microbatch, stage) not in schedule.ranks[rank]:
                wrong = f"rank {rank}: the backward of {action} is in two; an update can only follow a whole one"
                raise ScheduleError(wrong, rank, action)
            if version.staleness > most:
                raise ScheduleError(
                    f"rank {rank}: {action} meets weights of version {version.forward} and its backward version "
                    f"{version.backward}: its gradient is {version.staleness} updates old, where {most} would do",
                    rank,
                    action,
                )
