"""What came of a run: the results that the ranks sent, or what went wrong, in words."""

from __future__ import annotations

import pickle
from typing import Any

from dtcourse.cluster import explain
from dtcourse.cluster.crew import Crew
from dtcourse.cluster.supervise import Ending, Outcome, Supervisor
from dtcourse.errors import Deadlock, MismatchError, RankDied, RankError, RunError, RunStopped, RunTimeout


def results(outcome: Outcome, world_size: int) -> tuple[list[Any], RankError | None]:
    """What each rank returned (None: nothing), and an error if one of them cannot be read here."""
    values: list[Any] = [None] * world_size
    problem = None
    for rank, answer in sorted(outcome.answers.items()):
        if answer.result is not None:
            try:
                values[rank] = pickle.loads(answer.result)
            except Exception as reason:
                problem = problem or RankError(explain.unreadable(rank, reason), rank=rank)
    return values, problem


def error(crew: Crew, supervisor: Supervisor, outcome: Outcome, closed: bool) -> RunError | None:
    """What went wrong, in words; None if nothing did. `closed`: the cluster was closed meanwhile."""
    failures = {rank: a.failure for rank, a in outcome.answers.items() if a.failure}
    for failure in failures.values():
        if failure.disagree:
            return MismatchError(explain.mismatch(failure.disagree, crew.readers))
    if outcome.ending is Ending.STOPPED:
        at = [f"rank {r}: {explain.stopped_at(f)}" for r, f in sorted(failures.items())]
        why = "the cluster was closed during the run" if closed else "the run was stopped"
        return RunStopped("\n  ".join([why, *at]))
    if outcome.ending is Ending.DIED:
        rank = next(r for r in outcome.dead if r not in supervisor.may_die)
        return RankDied(explain.death(rank, crew.end().get(rank)), rank=rank)
    if outcome.ending is Ending.DEADLOCK:
        return _deadlock(crew, supervisor, outcome)
    if outcome.ending is Ending.TIMEOUT:
        return RunTimeout(explain.timeout(supervisor.timeout, supervisor.running, supervisor.watch))
    if outcome.ending is Ending.FAILED:
        first = failures[min(failures)]  # not by the clock: a mistake that all ranks make reads the same each time
        if first.died is not None:
            how = explain.death(first.died, crew.end().get(first.died))
            return RankDied(explain.needed(how, failures), rank=first.died)
        rank, *also = sorted(r for r, f in failures.items() if (f.kind, f.message) == (first.kind, first.message))
        return RankError(explain.failure(rank, failures[rank], also, sorted(supervisor.running)), rank=rank)
    return None


def _deadlock(crew: Crew, supervisor: Supervisor, outcome: Outcome) -> Deadlock:
    returned, readers = set(outcome.answers), crew.readers
    computing = set(supervisor.running) - set(outcome.stuck)
    waits = [(r, explain.short(w, readers[r]), w.needs) for r, w in sorted(outcome.stuck.items())]
    text = explain.deadlock(outcome.stuck, returned, computing, outcome.dead, readers)
    return Deadlock(text, waits=waits, returned=frozenset(returned))
