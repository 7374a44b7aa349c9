"""What a reader's schedule is, held against the right one, as pure functions to findings; no processes.

A schedule here has one stage a rank, and backwards in one piece. Findings draw its table, and mark in it where it first
goes wrong.
"""

from __future__ import annotations

import reprlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from itertools import takewhile
from typing import Any

import torch.distributed as dist

from dtcourse.grading.findings import Finding, number_of
from dtcourse.pipeline.actions import Action, Kind, Schedule
from dtcourse.pipeline.check import check
from dtcourse.pipeline.draw import chart
from dtcourse.pipeline.order import ScheduleError, in_order
from dtcourse.pipeline.simulate import in_flight, simulate

Pairs = list[tuple[str, int]]
YOURS = "your lists"


# -- on the ranks ------------------------------------------------------------------------------------------------------


def own_list(rule: Callable[..., Any], microbatches: int) -> Pairs:
    """Each rank asks (rank, stages, microbatches) for the list of its own actions: pairs such as ("F", 0), ("B", 0)."""
    return listed(rule(dist.get_rank(), dist.get_world_size(), microbatches))


def listed(answer: Any) -> Pairs:
    """What a reader's function returned, as plain pairs. Raises TypeError if it is no list of pairs."""
    if not isinstance(answer, Iterable) or isinstance(answer, (str, Set, Mapping)):
        raise TypeError(f"it returned {reprlib.repr(answer)}, which is no list of actions")
    return [pair(action) for action in answer]


def pair(action: Any) -> tuple[str, int]:
    """A plain pair. Raises TypeError if that is not what it is."""
    match action:
        case (str(kind), int(number)) if kind in (Kind.FORWARD, Kind.BACKWARD) and not isinstance(number, bool):
            return str(kind), number
    raise TypeError(f"{reprlib.repr(action)} is in its list, and is no action")


def planned(lists: Sequence[Pairs], microbatches: int) -> Schedule:
    """The lists of all ranks as one schedule."""
    ranks = (tuple(Action(Kind(kind), m, rank) for kind, m in pairs) for rank, pairs in enumerate(lists))
    return Schedule(tuple(ranks), len(lists), microbatches)


# -- findings ----------------------------------------------------------------------------------------------------------


def each_once(schedule: Schedule) -> Iterator[Finding]:
    """Each rank does the forward and the backward of each micro-batch once, and nothing else."""
    for rank, actions in enumerate(schedule.ranks):
        if said := not_once(rank, actions, schedule.microbatches):
            yield Finding(said, rank=rank, drawing=as_listed(schedule))


def not_once(rank: int, actions: Sequence[Action], microbatches: int) -> str | None:
    """What one rank does too often or never, in words."""
    times = Counter(map(short, actions))
    for action in actions:
        if not 0 <= action.microbatch < microbatches:
            return f"rank {rank} does {short(action)}; the micro-batches are 0 to M-1 = {microbatches - 1}"
    for name, count in times.items():
        if count > 1:
            numbers = {action.microbatch for action in actions}
            hint = ": the number of a pair is the micro-batch; the stage is the rank" if numbers == {rank} else ""
            return f"rank {rank} does {name} {count} times, and not once{hint}"
    missing = [name for kind in "FB" for m in range(microbatches) if not times[name := f"{kind}{m}"]]
    if not missing:
        return None
    last = [f"B{m}" for m in range(microbatches - len(missing), microbatches)]
    hint = ": after its last forward, they are still to come" if missing == last else ""
    return f"rank {rank} never does {', '.join(missing)}{hint}"


def comes_to_its_end(schedule: Schedule) -> Iterator[Finding]:
    """No rank waits for ever, also where the schedule has become messages."""
    try:
        check(schedule)
    except ScheduleError as problem:
        rank, action = problem.rank, problem.action
        own = action and action.kind == Kind.BACKWARD and forward_of(action) in schedule.ranks[rank]
        if own and schedule.ranks[rank].index(forward_of(action)) > schedule.ranks[rank].index(action):
            before = f"rank {rank} does {short(action)} before {short(forward_of(action))}"
            said = f"{before}: a backward needs the activation that its own forward leaves"
        else:
            said = str(problem)
        yield Finding(said, rank=rank, drawing=until_stuck(schedule))


def kept(schedule: Schedule, right: Schedule, name: str, formula: str) -> Iterator[Finding]:
    """No rank keeps more activations than in the right schedule. `formula` says how many these are."""
    for rank, (actions, wanted) in enumerate(zip(schedule.ranks, right.ranks, strict=True)):
        most = max(in_flight(wanted))
        for index, count in enumerate(in_flight(actions)):
            if count > most:
                much = f"rank {rank} keeps {number_of(count, 'activation')} during {short(actions[index])}"
                said = f"{much}; {name} keeps {formula} = {most} at most"
                yield first_difference(f"{said}:\n", schedule, right, name, rank)
                break


def takes_longer(schedule: Schedule, right: Schedule, name: str) -> Iterator[Finding]:
    """It takes no longer than the right schedule."""
    (seen, wanted), stages = map(simulate, (schedule, right)), schedule.stages
    if seen.makespan > wanted.makespan:
        rank = earliest(schedule, right)
        formula = f"(P-1) / (M+P-1) = {stages - 1}/{schedule.microbatches + stages - 1}"
        took = f"it takes the time of {seen.makespan:g} forwards, and the ranks idle {seen.bubble:.0%} of it"
        bubble = f"{name} takes {wanted.makespan:g}, of which they idle {formula} = {wanted.bubble:.0%}"
        yield first_difference(f"{took}; {bubble}:\n", schedule, right, name, rank)


def in_the_right_order(schedule: Schedule, right: Schedule, name: str) -> Iterator[Finding]:
    """Every rank does the same as in the right schedule."""
    if schedule.ranks != right.ranks:
        rank = earliest(schedule, right)
        yield first_difference("", schedule, right, name, rank)


# -- where, and why ----------------------------------------------------------------------------------------------------


def first_difference(said: str, schedule: Schedule, right: Schedule, name: str, rank: int) -> Finding:
    """What was `said`, and then what `rank` does first that is not right, drawn."""
    plans = {YOURS: simulate(schedule), name: simulate(right)}
    why, drawing = because(schedule, right, name, rank), both(schedule, right, name, rank)
    return Finding(said + why, rank=rank, drawing=drawing, plans=plans)


def earliest(schedule: Schedule, right: Schedule) -> int:
    """The rank that is the first, in the time of the right schedule, to do something else. There is one."""
    spans = simulate(right).ranks
    others = [rank for rank, actions in enumerate(schedule.ranks) if actions != right.ranks[rank]]
    return min(others, key=lambda rank: spans[rank][first_other(schedule, right, rank)].start)


def first_other(schedule: Schedule, right: Schedule, rank: int) -> int:
    """The place of the first action of a rank that is not the right one. There is one."""
    pairs = zip(schedule.ranks[rank], right.ranks[rank], strict=True)
    return next(place for place, (seen, wanted) in enumerate(pairs) if seen != wanted)


def because(schedule: Schedule, right: Schedule, name: str, rank: int) -> str:
    """What a rank does first that is not right, and what it should do there."""
    place = first_other(schedule, right, rank)
    seen, wanted = schedule.ranks[rank][place], right.ranks[rank][place]
    does = f"rank {rank} does {short(seen)} where {name} does {short(wanted)}"
    if seen.kind == wanted.kind:
        kind = "forwards" if seen.kind == Kind.FORWARD else "backwards"
        return f"{does}: the {kind} go from micro-batch 0 to the last"
    before, least = (forwards_first(each.ranks[rank]) for each in (schedule, right))
    if before != least:
        return f"{does}: its first backward comes after {number_of(least, 'forward')}, not after {before}"
    return f"{does}: after its first backward, one forward and one backward come in turn"


def forwards_first(actions: Sequence[Action]) -> int:
    """How many forwards there are before the first backward."""
    return sum(1 for _ in takewhile(lambda action: action.kind == Kind.FORWARD, actions))


def forward_of(action: Action) -> Action:
    """The forward that a backward belongs to."""
    return action._replace(kind=Kind.FORWARD)


# -- drawings ----------------------------------------------------------------------------------------------------------


def short(action: Action) -> str:
    """F2: the stage is the rank."""
    return f"{action.kind}{action.microbatch}"


def as_listed(schedule: Schedule) -> str:
    """The lists as they are, without times."""
    rows = (" ".join(map(short, actions)) for actions in schedule.ranks)
    return "\n".join(f"  rank {rank}  {row}" for rank, row in enumerate(rows))


def until_stuck(schedule: Schedule) -> str:
    """The table of what happens until nothing can, and what each rank waits to do."""
    happened: list[list[Action]] = [[] for _ in schedule.ranks]
    try:
        for rank, action in in_order(schedule):
            happened[rank].append(action)
    except ScheduleError:
        pass
    table = chart(Schedule(tuple(map(tuple, happened)), schedule.stages, schedule.microbatches))
    waits = [actions[len(done) : len(done) + 1] for actions, done in zip(schedule.ranks, happened, strict=True)]
    rows = zip(table.splitlines(), waits, strict=True)
    return "\n".join(
        "  " + row + "".join(f"   {short(action)} never begins" for action in next_) for row, next_ in rows
    )


def both(schedule: Schedule, right: Schedule, name: str, rank: int) -> str:
    """The table of the schedule, with a mark under the first action of `rank` that is not right; and the right one."""
    rows = pointed(schedule, rank, first_other(schedule, right, rank))
    table = [YOURS, *rows, name, *chart(right).splitlines()]
    return "\n".join(f"  {row}" for row in table)


def pointed(schedule: Schedule, rank: int, place: int) -> list[str]:
    """The rows of the table, with a mark under the action of `rank` at this place."""
    rows = chart(schedule).splitlines()
    width = 1 + max(len(short(action)) for actions in schedule.ranks for action in actions)
    start = len(f"rank {rank}  ") + int(simulate(schedule).ranks[rank][place].start) * width
    rows.insert(rank + 1, " " * start + "^" * len(short(schedule.ranks[rank][place])))
    return rows
