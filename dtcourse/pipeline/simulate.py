"""What a schedule costs: when each action starts and ends, who idles how long, how many activations are kept.

A rank works through its list; an action starts when the rank is free and all that it needs has come. The time for a
value to reach another rank passes without keeping either of them busy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from .actions import Action, Kind, Schedule, Value
from .order import in_order

Cost: TypeAlias = float | Sequence[float]  # the same for all stages, or one a stage


@dataclass(frozen=True)
class Costs:
    """Times of F, I and W (any unit; B is I + W), and of a value's way to another rank."""

    forward: Cost = 1
    input: Cost = 1
    weight: Cost = 1
    communication: float = 0

    def of(self, action: Action) -> float:
        """The time of one action."""
        parts = {
            Kind.FORWARD: (self.forward,),
            Kind.BACKWARD: (self.input, self.weight),
            Kind.INPUT: (self.input,),
            Kind.WEIGHT: (self.weight,),
        }[action.kind]
        return sum(part[action.stage] if isinstance(part, Sequence) else part for part in parts)


class Span(NamedTuple):
    """An action and its time."""

    action: Action
    start: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """What a simulation found: `ranks[r]` are the spans of rank r in order. Times are in the unit of the costs."""

    ranks: tuple[tuple[Span, ...], ...]

    @property
    def makespan(self) -> float:
        """From 0 to the end of the last action."""
        return max((spans[-1].end for spans in self.ranks if spans), default=0)

    @property
    def bubble(self) -> float:
        """The share of all ranks' time in which they idle, 0 to 1, from 0 to the makespan."""
        total = len(self.ranks) * self.makespan
        return sum(self.idle) / total if total else 0.0

    @property
    def idle(self) -> tuple[float, ...]:
        """For each rank, its idle time between 0 and the makespan."""
        return tuple(self.makespan - busy(spans) for spans in self.ranks)

    @property
    def gaps(self) -> tuple[float, ...]:
        """For each rank, its idle time between its first and its last action: what zero bubble calls the bubble.

        Ranks that start late end late, and need not wait for each other before the next batch begins.
        """
        return tuple(spans[-1].end - spans[0].start - busy(spans) if spans else 0.0 for spans in self.ranks)


def busy(spans: Sequence[Span]) -> float:
    """The time in which a rank works."""
    return sum(span.end - span.start for span in spans)


def simulate(schedule: Schedule, costs: Costs | None = None) -> Timeline:
    """Start and end of every action. Costs default to 1 for F, I and W each, and messages that take no time.

    Raises `ScheduleError` if the schedule cannot run, ValueError if there are costs for another number of stages.
    """
    costs = costs or Costs()
    for name in ("forward", "input", "weight"):
        cost = getattr(costs, name)
        if isinstance(cost, Sequence) and len(cost) != schedule.stages:
            raise ValueError(f"costs: {len(cost)} values of {name} for {schedule.stages} stages")
    spans: list[list[Span]] = [[] for _ in schedule.ranks]
    there: dict[Value | None, float] = {}  # when a value is made
    for rank, action in in_order(schedule):
        start = spans[rank][-1].end if spans[rank] else 0
        for value in schedule.needs(action):
            travel = 0 if schedule.rank_of(value.stage) == rank else costs.communication
            start = max(start, there[value] + travel)
        spans[rank].append(Span(action, start, start + costs.of(action)))
        there[schedule.makes(action)] = spans[rank][-1].end
    return Timeline(tuple(map(tuple, spans)))


def in_flight(actions: Sequence[Action]) -> tuple[int, ...]:
    """How many activations a rank keeps during each of its actions; all its stages counted together.

    A forward adds one. It goes when the backward has ended, or the weight half, which needs it as well.
    """
    kept, counts = 0, []
    for action in actions:
        kept += action.kind == Kind.FORWARD
        counts.append(kept)
        kept -= action.kind in (Kind.BACKWARD, Kind.WEIGHT)
    return tuple(counts)


def peak_activations(schedule: Schedule) -> tuple[int, ...]:
    """For each rank, the most activations that it keeps at once."""
    return tuple(max(in_flight(actions), default=0) for actions in schedule.ranks)
