"""What a reader's cost formula is made of, how many latencies and how often the tensor, and what the right one is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from dtcourse.grading.findings import number_of

TOLERANCE = 1e-9  # relative


class Question(NamedTuple):
    """The arguments of `seconds`: size in bytes, latency in seconds, bandwidth in bytes a second."""

    algorithm: str
    world: int
    size: int
    latency: float
    bandwidth: float

    def __str__(self) -> str:
        return "seconds" + repr(tuple(self))


@dataclass(frozen=True, slots=True)
class Cost:
    """`steps` latencies and `tensors` times size / bandwidth. `formula`: how both come about, in words."""

    steps: int
    tensors: float
    formula: str

    def seconds(self, question: Question) -> float:
        return self.steps * question.latency + self.tensors * question.size / question.bandwidth


def answers(function: Callable[..., Any], questions: Sequence[tuple]) -> list[Any]:
    """What the function returns for each of these arguments."""
    return [function(*question) for question in questions]


def questions(algorithm: str, world: int) -> list[Question]:
    """The latencies alone, the bytes alone, and both, with two bandwidths."""
    return [
        Question(algorithm, world, 0, 1.0, 1.0),
        Question(algorithm, world, 1000, 0.0, 1000.0),
        Question(algorithm, world, 4_000_000, 0.0, 1.25e8),
        Question(algorithm, world, 1_000_000, 0.001, 1e8),
    ]


def wrong_seconds(asked: Sequence[Question], answered: Sequence[Any], right: Mapping[tuple, Cost]) -> Iterator[str]:
    """What is wrong with the answers, in words. `right`: (algorithm, world) -> its cost."""
    for question, answer in zip(asked, answered, strict=True):
        cost = right[question.algorithm, question.world]
        expected, returned = cost.seconds(question), f"{question} returned {answer!r}"
        if isinstance(answer, bool) or not isinstance(answer, (int, float)):
            yield f"{returned}: return the seconds, a number"
        elif not abs(answer - expected) <= TOLERANCE * max(abs(expected), 1e-12):  # nor if it is not a number
            yield f"{returned}{_compared(question, answer, cost)}"


def _compared(question: Question, answer: float, cost: Cost) -> str:
    """In latencies, or in tensors, if only one of them counts; else in seconds."""
    if not question.size:
        its = f"{number_of(cost.steps, 'step')} ({cost.formula})"
        return f": without bytes that is {answer / question.latency:.6g} times the latency; it takes {its}"
    if not question.latency:
        tensors = answer * question.bandwidth / question.size
        units = _units(tensors / cost.tensors) if cost.tensors else ""
        its = f"{cost.tensors:.6g} ({cost.formula})"
        if question.bandwidth != question.size:
            return f"; expected {cost.seconds(question):.6g} = {cost.tensors:.6g} size / bandwidth{units}"
        return f": without latency that is {tensors:.6g} times size / bandwidth; it takes {its}{units}"
    both = f"{cost.steps} latency + {cost.tensors:.6g} size / bandwidth"
    return f"; expected {cost.seconds(question):.6g} = {both}"


def _units(factor: float) -> str:
    if abs(factor - 8) < TOLERANCE or abs(factor - 1 / 8) < TOLERANCE:
        return ". Both size and bandwidth are in bytes"
    return ""


def not_the_fastest(asked: Sequence[tuple], answered: Sequence[Any], right: Mapping[tuple, Cost]) -> Iterator[str]:
    """The same for `fastest`, asked with (world, size, latency, bandwidth)."""
    for question, answer in zip(asked, answered, strict=True):
        world = question[0]
        took = {a: cost.seconds(Question(a, *question)) for (a, ranks), cost in right.items() if ranks == world}
        returned = f"fastest{question!r} returned {answer!r}"
        if not isinstance(answer, str) or answer not in took:
            yield f"{returned}: return one of {', '.join(map(repr, took))}"
        elif took[answer] > (1 + TOLERANCE) * min(took.values()):
            yield f"{returned}; they take: {', '.join(f'{a} {s:.8g} s' for a, s in took.items())}"
