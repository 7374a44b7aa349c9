"""What a reader's weight policy did, and what its pieces answered: as pure functions to findings, no processes.

The ranks' record is held against `dtcourse.grading.simulated`. The first action that met other weights, or left others
behind, is the cause of all that follows; mistakes that are often made have words of their own.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from dtcourse.grading.asynchronous import LR, G, Seen
from dtcourse.grading.findings import Finding, number_of
from dtcourse.grading.schedules import pointed, short
from dtcourse.grading.simulated import Moment, Policy, simulated, spectrain_ahead
from dtcourse.pipeline.actions import Action, Kind, Schedule
from dtcourse.run import Run

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}  # for numbers of about 1
WAYS = {Kind.FORWARD: "forward", Kind.BACKWARD: "backward"}

Guesses = Mapping[str, torch.Tensor]  # what somebody may have computed, under what is to be said of it


def difference(seen: torch.Tensor, wanted: torch.Tensor, guesses: Guesses) -> str | None:
    """What is wrong, in words: those of the first guess that fits. None if nothing is wrong."""
    tolerance = TOLERANCE[wanted.dtype]
    for words, guess in {None: wanted, **guesses}.items():
        if torch.allclose(seen, guess, rtol=tolerance, atol=tolerance):
            return words
    at = int((seen - wanted).abs().nan_to_num(torch.inf).argmax())
    return f"{seen[at]:.6g} at position {at} of {len(wanted)}, where {wanted[at]:.6g} is expected"


# -- policies on the ranks ---------------------------------------------------------------------------------------------


def as_simulated(
    run: Run, schedule: Schedule, policy: Policy, mistakes: Callable[[Moment], Guesses]
) -> Iterator[Finding]:
    """The first action that did not meet the weights of the policy, or did not leave behind what it should."""
    records, sent = [iter(record) for record in run.results], Sent(run)
    for moment in simulated(schedule, policy):
        kind, _, stage = moment.action
        seen = Seen(*next(records[stage]))
        left = left_by_forward if kind == Kind.FORWARD else left_by_backward
        met = difference(seen.met, moment.met, mistakes(moment))
        if said := f"compute() met {met}" if met else left(seen, moment) or sent.otherwise(moment):
            what = f"in {short(moment.action)} on stage {stage}, {said}"
            yield Finding(what, rank=stage, drawing=drawn(schedule, moment.action))
            return


class Sent:
    """What the stages sent each other: a record is in the ranks' own words, and messages nobody can make up."""

    def __init__(self, run: Run) -> None:
        # those of whole numbers only say what shapes will come
        sent = [e for e in run.messages() if e.payload is not None and e.payload.is_floating_point()]
        channels = {(e.rank, e.peer) for e in sent}
        self._payloads = {pair: iter([e.payload for e in sent if (e.rank, e.peer) == pair]) for pair in channels}

    def otherwise(self, moment: Moment) -> str | None:
        """What is wrong with what an action sent."""
        kind, m, stage = moment.action
        to = stage + 1 if kind == Kind.FORWARD else stage - 1
        if not 0 <= to < moment.stage.stages:
            return None
        payload = next(self._payloads.get((stage, to), iter(())), None)
        if (
            payload is not None
            and payload.shape == moment.made.shape
            and not difference(payload.flatten(), moment.made.flatten(), {})
        ):
            return None
        what = "activation" if kind == Kind.FORWARD else "gradient"
        return f"the {what} that went to stage {to} is not what those weights make of micro-batch {m}"


def left_by_forward(seen: Seen, moment: Moment) -> str | None:
    """What is wrong with what a forward leaves behind."""
    still = {"it leaves the predicted weights behind; put back the true ones": moment.met}
    if said := difference(seen.weights, moment.weights, still):
        return said if said in still else f"the weights change, and only an update may change them: {said}"
    if said := difference(seen.velocity, moment.velocity, {}):
        return f"the velocity changes, and only an update may change it: {said}"
    return None


def left_by_backward(seen: Seen, moment: Moment) -> str | None:
    """What is wrong with what a backward and its update leave behind."""
    stage, gradient = moment.stage, moment.gradient
    if said := difference(seen.velocity, moment.velocity, velocity_mistakes(stage.velocity, gradient, G)):
        return f"the velocity becomes {said}"
    mistakes = {
        "the weights are what they were before: put back the true ones first, and then update": stage.weights,
        "the update moved the weights that compute() met; put back the true ones first": (
            moment.met - LR * moment.velocity
        ),
        "the weights that compute() met are still there; put back the true ones, and update those": moment.met,
        **update_mistakes(stage.weights, stage.velocity, moment.velocity, gradient, LR),
    }
    if said := difference(seen.weights, moment.weights, mistakes):
        return said if said in mistakes else f"the weights become {said}"
    if seen.stashed > moment.in_flight:
        there = f"its stash has weights for {seen.stashed}, and {moment.in_flight} are in flight"
        return f"{there}: take out those that no backward will need any more"
    return None


def stashing_mistakes(moment: Moment) -> Guesses:
    """What else compute() may have met, and what it should have."""
    stage, (kind, m, _) = moment.stage, moment.action
    met = f"F{m} met those after {number_of(stage.met[m], 'update')}"
    wanted = f"the stage has made {number_of(stage.updates, 'update')}" if kind == Kind.FORWARD else met
    newest = {f"the newest weights, after {number_of(stage.updates, 'update')}; {wanted}": stage.weights}
    older = {n: f"the weights after {number_of(n, 'update')}; {wanted}" for n in range(stage.updates)}
    return newest | {said: stage.versions[n] for n, said in older.items()}


def spectrain_mistakes(moment: Moment) -> Guesses:
    """What else compute() may have met, and what it should have."""
    stage, kind = moment.stage, moment.action.kind
    updates, rest = spectrain_ahead(stage, kind), stage.stages - 1 - stage.number
    formula = f"floor({stage.number}/2)" + (f" + {rest}" if kind == Kind.FORWARD else "")
    wanted = f"SpecTrain looks {formula} = {updates} ahead"
    others = {
        n: f"the weights expected {number_of(n, 'update')} from now; {wanted}" for n in range(1, 3 * stage.stages)
    }
    return (
        {f"the true weights; {wanted}": stage.weights}
        | {said: stage.predicted(n) for n, said in others.items() if n != updates}
        | predict_mistakes(stage.weights, stage.velocity, LR, updates)
    )


# -- pieces ------------------------------------------------------------------------------------------------------------


def predict_mistakes(weights: torch.Tensor, v: torch.Tensor, lr: float, updates: int) -> Guesses:
    """What is often made of W - updates lr v."""
    return {
        "W + updates lr v: an update moves the weights by MINUS lr v": weights + updates * lr * v,
        "W - updates v: the learning rate is missing": weights - updates * v,
        "W - lr v, whatever the number of updates": weights - lr * v,
        "-updates lr v: that is the way, and it starts at W": -updates * lr * v,
    }


def velocity_mistakes(v: torch.Tensor, gradient: torch.Tensor, g: float) -> Guesses:
    """What is often made of g v + (1 - g) gradient."""
    return {
        "what it was before: update() has to be called, and to write into the tensors": v,
        "g v + gradient: the gradient counts (1 - g)": g * v + gradient,
        "(1 - g) v + g gradient: g and 1 - g are swapped": (1 - g) * v + g * gradient,
        "(1 - g) gradient alone: g v is missing": (1 - g) * gradient,
        "the gradient: it is a running mean over all of them": gradient,
        "g v - (1 - g) gradient: the velocity has the sign of the gradient, the weights go down": (
            g * v - (1 - g) * gradient
        ),
    }


def update_mistakes(
    weights: torch.Tensor, old: torch.Tensor, v: torch.Tensor, gradient: torch.Tensor, lr: float
) -> Guesses:
    """What is often made of W - lr v, where v is the new velocity."""
    return {
        "the weights moved by -lr gradient: they move by -lr v": weights - lr * gradient,
        "the weights moved with the old v: first comes the new one, and then they move with that": weights - lr * old,
        "the weights moved by -v: the learning rate is missing": weights - v,
        "the weights moved uphill: they move by MINUS lr v": weights + lr * v,
    }


# -- numbers of updates ------------------------------------------------------------------------------------------------


def versions_told(run: Run, schedule: Schedule) -> Iterator[Finding]:
    """What each rank said of its micro-batches is what the regions of the same run tell."""
    for stage, answers in enumerate(run.results):
        regions = [e for e in run.events if e.rank == stage and e.op in WAYS.values()]
        met = {(e.op, e.labels["microbatch"]): e.labels["version"] for e in regions}
        for m, answer in enumerate(answers):
            wanted = met["forward", m], met["backward", m]
            if said := wrong_versions(answer, wanted, stage, schedule.stages, m):
                kind = Kind.FORWARD if pair(answer)[:1] != wanted[:1] else Kind.BACKWARD
                yield Finding(said, rank=stage, drawing=drawn(schedule, Action(kind, m, stage)))
                return


def wrong_versions(answer: Any, wanted: tuple[int, int], stage: int, stages: int, m: int) -> str | None:
    """What is wrong with what versions() returned, in words."""
    if (seen := pair(answer)) == wanted:
        return None
    said = f"versions({stage}, {stages}, {m}) returned {reprlib.repr(answer)}; it is {wanted}"
    if len(seen) != 2:
        return f"{said}, a pair"
    if seen[1] != m:
        return f"{said}: before B{m} its stage has done {_backwards(m)}"
    if seen[0] < 0:
        return f"{said}: there cannot be fewer than 0 updates"
    return f"{said}: before F{m} its stage has done {_backwards(wanted[0])}"


def _backwards(count: int) -> str:
    """ "no backward", "B0", "B0 to B3"."""
    return "no backward" if not count else "B0" if count == 1 else f"B0 to B{count - 1}"


def wrong_ahead(answer: Any, stage: int, stages: int) -> str | None:
    """What is wrong with what ahead() returned, in words."""
    s, rest = stage, stages - 1 - stage
    wanted, up = (s // 2 + rest, s // 2), (s + 1) // 2
    mistakes = {
        "the forward comes first, then the backward": wanted[::-1],
        "a half is rounded down, not up": (up + rest, up),
        "a half is rounded down: updates are whole": (s / 2 + rest, s / 2),
        "stages are counted from 0, the first one": (rest // 2 + s, rest // 2),
        "it is not the same on all stages": (stages - 1, 0),
        "the stages after it are P-1-s, not P-s": (s // 2 + rest + 1, s // 2),
        "the P-1-s updates in between are for the forward alone": (wanted[0], wanted[0]),
        "the P-1-s updates in between are missing": (s // 2, s // 2),
    }
    if (seen := pair(answer)) == wanted:
        return None
    why = next((f": {words}" for words, mistake in mistakes.items() if seen == mistake), "")
    formula = f"s = {s} and P = {stages} give floor({s}/2) + {rest} = {wanted[0]} and floor({s}/2) = {wanted[1]}"
    return f"ahead({s}, {stages}) returned {reprlib.repr(answer)}; {formula}{why}"


def pair(answer: Any) -> tuple[Any, ...]:
    """The two numbers that a function returned; () if that is not what it returned."""
    two = isinstance(answer, (tuple, list)) and len(answer) == 2
    return tuple(answer) if two and all(isinstance(number, (int, float)) for number in answer) else ()


def drawn(schedule: Schedule, action: Action) -> str:
    """The table of the schedule, with a mark under an action; a rank has one stage."""
    rows = pointed(schedule, action.stage, schedule.ranks[action.stage].index(action))
    return "\n".join(f"  {row}" for row in rows)
