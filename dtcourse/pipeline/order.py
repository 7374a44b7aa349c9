"""An order in which the actions of all ranks can happen, one after another, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .actions import Action, Schedule, Value


class ScheduleError(ValueError):
    """A schedule that cannot run, or would compute something else. `rank` and `action` say where it shows."""

    def __init__(self, message: str, rank: int, action: Action | None = None) -> None:
        super().__init__(message, rank, action)  # all three, so that it can be pickled
        self.rank = rank
        self.action = action

    def __str__(self) -> str:
        return self.args[0]


def in_order(schedule: Schedule) -> Iterator[tuple[int, Action]]:
    """Yield (rank, action) so that each rank keeps its own order and every action finds what it needs.

    Raises `ScheduleError` where ranks wait for each other for ever, or for what nobody makes.
    """
    done = [0] * len(schedule.ranks)
    made: set[Value | None] = set()
    moved = True
    while moved:
        moved = False
        for rank, actions in enumerate(schedule.ranks):
            while done[rank] < len(actions) and made.issuperset(schedule.needs(actions[done[rank]])):
                action = actions[done[rank]]
                yield rank, action
                made.add(schedule.makes(action))
                done[rank] += 1
                moved = True
    if any(at < len(actions) for at, actions in zip(done, schedule.ranks, strict=True)):
        raise stuck(schedule, done, made)


def stuck(schedule: Schedule, done: Sequence[int], made: set[Value | None]) -> ScheduleError:
    """The error of a schedule whose rank r cannot go on after its first done[r] actions.

    It names the rank that can never go on whatever the others do, if there is one; otherwise the ring of ranks.
    """
    waits: dict[int, tuple[str, int | None]] = {}  # rank -> what it says, and the rank it waits for
    for rank, actions in enumerate(schedule.ranks):
        if done[rank] < len(actions):
            action = actions[done[rank]]
            missing = next(value for value in schedule.needs(action) if value not in made)
            maker = find(schedule, missing)
            says = f"rank {rank}, action {done[rank]} ({action}): needs {missing}, "
            if maker is None:
                return ScheduleError(says + "which no action makes", rank, action)
            by, index = maker
            if by == rank:
                return ScheduleError(says + f"which this rank makes only later, in action {index}", rank, action)
            waits[rank] = (says + f"which rank {by} makes in its action {index}", by)
    ring = ring_of({rank: by for rank, (_, by) in waits.items() if by is not None})
    lines = "\n  ".join(waits[rank][0] for rank in ring)
    first = ring[0]
    message = f"these ranks wait for each other and can never go on:\n  {lines}"
    return ScheduleError(message, first, schedule.ranks[first][done[first]])


def find(schedule: Schedule, value: Value) -> tuple[int, int] | None:
    """The rank and the place in its list of the action that makes a value."""
    for rank, actions in enumerate(schedule.ranks):
        for index, action in enumerate(actions):
            if schedule.makes(action) == value:
                return rank, index
    return None


def ring_of(waits: dict[int, int]) -> list[int]:
    """The ranks of a ring in `waits` (rank -> the one it waits for), where every rank that is waited for waits too."""
    path = [min(waits)]
    while waits[path[-1]] not in path:
        path.append(waits[path[-1]])
    return path[path.index(waits[path[-1]]) :]
