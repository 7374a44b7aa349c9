"""`Track`: which rank did which action of a pipeline when; measured, from the regions of a `Run`, or planned.

An action is the forward (F) of a micro-batch on a stage, its backward (B), or the backward's input half (I) and weight
half (W). Bubble: the idle part of all ranks' time from the first action's start to the last one's end, 0 to 1. Idle is
what lies outside the actions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from dtcourse.events import Event
from dtcourse.run import Run
from dtcourse.views import words

FORWARD, BACKWARD, INPUT, WEIGHT = "F", "B", "I", "W"
KINDS = {"forward": FORWARD, "backward": BACKWARD, "input": INPUT, "weight": WEIGHT}  # the names of the regions
SAY = 1e-3  # of the span: a shorter wait is not worth a word


class Action(NamedTuple):
    """What was done, to which micro-batch, on which stage."""

    kind: str
    microbatch: int
    stage: int

    def __str__(self) -> str:
        return f"{self.kind}{self.microbatch} of stage {self.stage}"


@dataclass(frozen=True, slots=True)
class Box:
    """An action and its time, from the start of the track's first action.

    version  of the weights it used, in updates of its stage, where its region tells
    pending  had not ended when the record ended
    """

    rank: int
    action: Action
    start: float
    end: float
    version: int | None = None
    pending: bool = False


@dataclass(frozen=True)
class Track:
    """lanes  rank -> its actions in order of time, for the ranks that have any
    timed  whether times are microseconds; otherwise they are in the unit of the plan's costs
    """

    name: str
    lanes: dict[int, tuple[Box, ...]]
    timed: bool = False

    @cached_property
    def boxes(self) -> tuple[Box, ...]:
        return tuple(box for lane in self.lanes.values() for box in lane)

    @cached_property
    def span(self) -> float:
        """From the first action's start, which is 0, to the last one's end."""
        return max(box.end for box in self.boxes)

    def busy(self, rank: int) -> float:
        return sum(box.end - box.start for box in self.lanes[rank])

    def idle(self, rank: int) -> float:
        """The part of the span in which a rank does nothing."""
        return 1 - self.busy(rank) / self.span if self.span else 0.0

    @property
    def bubble(self) -> float:
        return sum(map(self.idle, self.lanes)) / len(self.lanes)

    @cached_property
    def stages(self) -> dict[int, tuple[int, ...]]:
        """rank -> its stages, in order."""
        return {rank: tuple(sorted({box.action.stage for box in lane})) for rank, lane in self.lanes.items()}

    @property
    def microbatches(self) -> int:
        return len({box.action.microbatch for box in self.boxes})

    def time(self, value: float) -> str:
        return words.duration(value) if self.timed else f"{value:.4g}"

    def label(self, box: Box) -> str:
        """The micro-batch; where a rank has several stages, a letter tells them apart: 3a is on its first."""
        stages = self.stages[box.rank]
        letter = chr(ord("a") + stages.index(box.action.stage)) if len(stages) > 1 else ""
        return f"{box.action.microbatch}{letter}"

    def told(self) -> Iterator[tuple[Box, str]]:
        """Every action in words, and for whom it had to wait."""
        done: dict[Action, list[Box]] = {}
        for box in self.boxes:
            done.setdefault(box.action, []).append(box)
        for rank, lane in self.lanes.items():
            free = 0.0
            for box in lane:
                until = "the end: never ended" if box.pending else self.time(box.end)
                what = f"{self.name[:1].upper()}{self.name[1:]}: rank {rank}, {box.action}"
                version = "" if box.version is None else f", with version {box.version} of the weights"
                waited = self._waited(box, free, done) if box.start - free > SAY * self.span else ""
                yield box, f"{what}, from {self.time(box.start)} to {until}{version}{waited}."
                free = box.end

    def _waited(self, box: Box, free: float, done: dict[Action, list[Box]]) -> str:
        """For whom: another rank's action without which this one cannot start, if it ended after this rank was free."""
        idle = box.start - free
        candidates = [one for action in _needs(box.action) for one in done.get(action, ())]
        needed = candidates[0] if len(candidates) == 1 else None  # of two pipelines side by side nobody can tell
        if needed is None or needed.rank == box.rank or needed.end <= free:
            return f"; idle before it: {self.time(idle)}"
        waited = min(needed.end - free, idle)
        part = "" if waited > 0.95 * idle else f", {self.time(waited)} of them"
        return f"; waited {self.time(idle)}{part} for {needed.action} on rank {needed.rank}"


def _needs(action: Action) -> tuple[Action, ...]:
    """What it may wait for on another rank: the same micro-batch on the stage before, or on the one after."""
    kind, microbatch, stage = action
    if kind == FORWARD:
        return (Action(FORWARD, microbatch, stage - 1),)
    return () if kind == WEIGHT else tuple(Action(one, microbatch, stage + 1) for one in (BACKWARD, INPUT))


# -- measured ----------------------------------------------------------------------------------------------------------


def steps(run: Run) -> list[Track]:
    """The actions of a run, step by step.

    They are its regions "forward", "backward", "input" and "weight" that say their `microbatch`; without a `stage`,
    the stage is the rank. What a rank waits for inside a region counts as work. On each rank a new step begins with an
    action that the step has had. Raises ValueError, with the line to write, if there are no such regions.
    """
    end = run.span[1]
    lanes: dict[int, list[dict[Action, Event]]] = {}
    for event in sorted((e for e in run.regions() if _is_action(e)), key=lambda e: e.posted):
        own = lanes.setdefault(event.rank, [{}])
        if _action(event) in own[-1]:
            own.append({})
        own[-1][_action(event)] = event
    if not lanes:
        others = ", ".join(sorted({e.op for e in run.regions()})) or "none"
        raise ValueError(
            f"{run.function or 'this run'} has no actions of a pipeline (regions it has: {others}). `Pipeline` makes "
            'them; in a loop of your own, write `with region("forward", microbatch=m, stage=s):` around what computes, '
            'and the same with "backward", after `from dtcourse import region`.'
        )
    count = max(map(len, lanes.values()))
    return [
        _step({r: [*own[i].values()] for r, own in sorted(lanes.items()) if i < len(own)}, end) for i in range(count)
    ]


def has_pipeline(run: Run) -> bool:
    """Whether a run has actions of a pipeline."""
    return any(map(_is_action, run.regions()))


def _is_action(event: Event) -> bool:
    labels = event.labels
    return event.op in KINDS and isinstance(labels.get("microbatch"), int) and isinstance(labels.get("stage", 0), int)


def _action(event: Event) -> Action:
    return Action(KINDS[event.op], event.labels["microbatch"], event.labels.get("stage", event.rank))


def _step(lanes: dict[int, list[Event]], end: int) -> Track:
    first = min(lane[0].posted for lane in lanes.values())

    def box(event: Event) -> Box:
        times = [((end if time is None else time) - first) / 1000 for time in (event.posted, event.ended)]
        return Box(event.rank, _action(event), *times, version=event.labels.get("version"), pending=event.pending)

    return Track("measured", {rank: tuple(map(box, lane)) for rank, lane in lanes.items()}, timed=True)


def chosen(run: Run, step: int) -> tuple[Track, str]:
    """The track of a step, counted as Python counts (-1 is the last), and which one it is in words."""
    found = steps(run)
    number, which = words.step(step, len(found), run.function)
    return found[number], which


# -- planned -----------------------------------------------------------------------------------------------------------


def planned(plan: Any, name: str = "planned") -> Track:
    """The track of what `simulate(schedule)` returns: `plan.ranks[r]` are its (action, start, end) in order."""
    spans = [(rank, span) for rank, lane in enumerate(getattr(plan, "ranks", ())) for span in lane]
    if not spans or not all(hasattr(span, "action") for _, span in spans):
        raise TypeError(f"a plan is what simulate(schedule) returns, with at least one action; not {plan!r:.80}")
    lanes: dict[int, list[Box]] = {}
    first = min(span.start for _, span in spans)
    for rank, (action, start, end) in spans:
        own = Action(str(action.kind), action.microbatch, action.stage)
        lanes.setdefault(rank, []).append(Box(rank, own, start - first, end - first))
    return Track(name, {rank: tuple(lane) for rank, lane in lanes.items()})


def fitted(plan: Any, to: Track, run: Run) -> Track:
    """The plan on the time axis of a measured track: stretched so that it holds as much work.

    Raises ValueError if it plans something else than what ran. Of a run that failed, it may plan more.
    """
    track = planned(plan)
    plans, did = ({frozenset(box.action for box in lane) for lane in one.lanes.values()} for one in (track, to))
    if not (all(any(own <= one for one in plans) for own in did) if run.failure else plans == did):
        sizes = [_sizes(one) for one in (track, to)]
        raise ValueError(
            f"the plan is for {sizes[0]}, and {run.function or 'the run'} did {sizes[1]}"
            f"{', placed on the ranks in another way' if sizes[0] == sizes[1] else ''}. "
            "Give the plan of what ran: simulate(schedule) of the schedule that the pipeline was made with"
        )
    length = {box.action: box.end - box.start for box in track.boxes}
    work = sum(length[box.action] for box in to.boxes)
    by = sum(map(to.busy, to.lanes)) / work if work else 1.0
    lanes = {
        rank: tuple(replace(box, start=box.start * by, end=box.end * by) for box in lane)
        for rank, lane in track.lanes.items()
    }
    return replace(track, lanes=lanes, timed=True)


def _sizes(track: Track) -> str:
    kinds = " ".join(sorted({box.action.kind for box in track.boxes}))
    stages = len({box.action.stage for box in track.boxes})
    counts = {"rank": len(track.lanes), "stage": stages, "micro-batch": track.microbatches}
    named = [f"{n} {name}{'' if n == 1 else 'es' if name == 'micro-batch' else 's'}" for name, n in counts.items()]
    return f"{', '.join(named)} ({kinds})"
