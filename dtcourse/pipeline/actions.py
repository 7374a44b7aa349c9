"""What a schedule is made of: actions, and what each of them needs and makes.

A model of S stages runs on P ranks; stage s lives on rank s mod P. A batch is cut into M micro-batches.

    kind            needs                                                       makes
    F  forward      the activation of the stage before                          its activation
    B  backward     its own activation, the gradient of the stage after         its gradient
    I  input half   the same as B                                               its gradient
    W  weight half  its own gradient                                            nothing that leaves the stage

The gradient of a stage is the one of the loss with respect to the stage's input: what the stage before is waiting for.
A backward is either one B, or I and W apart: nobody waits for W, so it can fill a gap. That is all of zero bubble.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Kind(StrEnum):
    """What a stage does with a micro-batch."""

    FORWARD = "F"
    BACKWARD = "B"  # = INPUT and WEIGHT in one
    INPUT = "I"
    WEIGHT = "W"


class Action(NamedTuple):
    """One thing that a rank does: `Action(Kind.FORWARD, 2, 1)` is the forward of micro-batch 2 on stage 1."""

    kind: Kind
    microbatch: int
    stage: int

    def __str__(self) -> str:
        return f"{self.kind}{self.microbatch} of stage {self.stage}"


class Value(NamedTuple):
    """What an action makes and others wait for: an activation (going right) or a gradient (going left)."""

    name: str
    microbatch: int
    stage: int  # the one that makes it

    def __str__(self) -> str:
        return f"the {self.name} of micro-batch {self.microbatch} from stage {self.stage}"


@dataclass(frozen=True)
class Schedule:
    """Who does what, in which order: `ranks[r]` are the actions of rank r, one after another.

    Pure data: nothing here runs, and a schedule may be wrong (`pipeline.check` finds out).
    `asynchronous`: a stage updates its weights after each of its backwards, not once at the end of the batch.
    """

    ranks: tuple[tuple[Action, ...], ...]
    stages: int
    microbatches: int
    asynchronous: bool = False

    def rank_of(self, stage: int) -> int:
        """The rank on which a stage lives."""
        return stage % len(self.ranks)

    def needs(self, action: Action) -> tuple[Value, ...]:
        """The values without which an action cannot start, also those that its own rank makes."""
        kind, microbatch, stage = action
        if kind == Kind.FORWARD:
            return (Value("activation", microbatch, stage - 1),) if stage > 0 else ()
        if kind == Kind.WEIGHT:
            return (Value("gradient", microbatch, stage),)
        own = Value("activation", microbatch, stage)
        return (own, Value("gradient", microbatch, stage + 1)) if stage < self.stages - 1 else (own,)

    def makes(self, action: Action) -> Value | None:
        """The value that an action leaves behind, None for a weight half."""
        if action.kind == Kind.WEIGHT:
            return None
        return Value("activation" if action.kind == Kind.FORWARD else "gradient", action.microbatch, action.stage)

    def goes_to(self, value: Value) -> int | None:
        """The rank that a value is sent to; None if it stays on its rank, or nobody needs it (at both ends)."""
        stage = value.stage + (1 if value.name == "activation" else -1)
        if not 0 <= stage < self.stages or self.rank_of(stage) == self.rank_of(value.stage):
            return None
        return self.rank_of(stage)


def forward(microbatch: int, stage: int) -> Action:
    """F: the forward of a micro-batch on a stage."""
    return Action(Kind.FORWARD, microbatch, stage)


def backward(microbatch: int, stage: int) -> Action:
    """B: the whole backward."""
    return Action(Kind.BACKWARD, microbatch, stage)


def input_gradient(microbatch: int, stage: int) -> Action:
    """I: the half of the backward that the stage before waits for."""
    return Action(Kind.INPUT, microbatch, stage)


def weight_gradient(microbatch: int, stage: int) -> Action:
    """W: the half of the backward that nobody waits for."""
    return Action(Kind.WEIGHT, microbatch, stage)


def require_sizes(**sizes: int) -> None:
    """Refuse a number of stages, micro-batches or chunks that is no whole number from 1 on."""
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ValueError(f"{name} = {size!r}: must be a whole number, at least 1")
