"""Layers that a reader's function is to cut into stages, and what it answers; what runs on the rank.

Knows no way to cut them: that is the exercise.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

SHOWN = 16  # layers, before they become too many to read


class Case(NamedTuple):
    """Layers to cut. `memory` None: by time alone."""

    costs: list[int]
    stages: int
    memory: list[int] | None = None
    limit: int = 0

    @property
    def arguments(self) -> tuple[Any, ...]:
        """What the reader's function gets."""
        return (self.costs, self.stages) if self.memory is None else (self.costs, self.memory, self.limit, self.stages)

    def __str__(self) -> str:
        """The arguments, as one would write them."""
        if len(self.costs) <= SHOWN:
            return ", ".join(map(repr, self.arguments)).join("()")
        return f"({'costs' if self.memory is None else f'costs, memory, {self.limit}'}, {self.stages})"


class Answer(NamedTuple):
    """What came back: the `cut` if it is a list of whole numbers, or else None; and what it looked like."""

    cut: list[int] | None
    shown: str
    refused: bool = False  # with a ValueError, which `shown` has
    changed: bool = False  # one of the arguments


def cuts(function: Callable[..., Any], cases: Sequence[Case]) -> list[Answer]:
    """partition(costs, stages) returns how many layers each stage takes. Trying every cut never ends with many layers:
    keep the best cut of the first ones, and go on from there."""
    return [answer(function, case) for case in cases]


def cuts_or_refusals(function: Callable[..., Any], cases: Sequence[Case]) -> list[Answer]:
    """partition_within(costs, memory, limit, stages) returns how many layers each stage takes. Trying every cut never
    ends with many layers: keep the best cut of the first ones, and go on from there."""
    answers = []
    for case in cases:
        try:
            answers.append(answer(function, case))
        except ValueError as problem:
            answers.append(Answer(None, str(problem), refused=True))
    return answers


def answer(function: Callable[..., Any], case: Case) -> Answer:
    """Ask once."""
    given = deepcopy(case.arguments)
    returned = function(*given)
    cut = whole_numbers(returned)
    return Answer(cut, repr(returned if cut is None else cut), changed=given != case.arguments)


def whole_numbers(returned: Any) -> list[int] | None:
    """A plain list of them, of any sequence or kind of integer; None if it is something else."""
    try:
        return [operator.index(number) for number in returned]
    except TypeError:
        return None
