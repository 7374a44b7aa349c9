"""How stale gradients were corrected before they were applied, as pure functions to findings; no processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from dtcourse.grading.findings import Finding, number_of
from dtcourse.grading.serving import LR
from dtcourse.grading.updates import SERVER, published
from dtcourse.run import Run

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}  # for numbers of about 1


@dataclass(frozen=True, slots=True)
class Stale:
    """A stale gradient, the last of all `gradients` so far; the weights now, and those that it was computed on."""

    gradients: Sequence[torch.Tensor]
    weights: torch.Tensor
    backup: torch.Tensor

    @property
    def g(self) -> torch.Tensor:
        return self.gradients[-1]

    @property
    def drift(self) -> torch.Tensor:
        return self.weights - self.backup


Rule = Callable[[Stale], torch.Tensor]  # what is applied in its place


def compensated(run: Run, rule: Rule, mistakes: Mapping[str, Rule]) -> Iterator[Finding]:
    """Each update applied what `rule` gives. `mistakes`: what to say to those who follow another rule."""
    parameters, gradients = published(run), list[torch.Tensor]()
    pushed = {worker: iter(run.messages(worker)) for worker in range(SERVER + 1, run.world_size)}
    pulled: dict[int, int] = {}  # worker -> the version that it computes on
    for mark in sorted(run.marks("begin", SERVER) + run.marks("update", SERVER), key=lambda e: e.index):
        worker, version = mark.labels["worker"], mark.labels["version"]
        if mark.op == "begin":
            pulled[worker] = version
            continue
        gradients.append(next(pushed[worker]).payload)
        stale = Stale(tuple(gradients), parameters[version - 1], parameters[pulled[worker]])
        backups = {
            f"the backup is version {other} of the parameters; worker {worker} had pulled version {pulled[worker]}": (
                rule(replace(stale, backup=parameters[other]))
            )
            for other in range(version)
        }
        guesses = {words: mistake(stale) for words, mistake in mistakes.items()} | backups
        if said := difference((stale.weights - parameters[version]) / LR, rule(stale), stale, guesses):
            age = number_of(mark.labels["staleness"], "update")
            yield Finding(
                f"update {version}, with a gradient of worker {worker} that was {age} old: {said}", mark.index
            )


def difference(
    seen: torch.Tensor, wanted: torch.Tensor, stale: Stale, guesses: Mapping[str, torch.Tensor]
) -> str | None:
    """What is wrong with what was applied, in words: those of the first guess that fits. None if nothing is wrong."""
    tolerance = TOLERANCE[wanted.dtype]
    for words, guess in {None: wanted, **guesses}.items():
        if torch.allclose(seen, guess, rtol=tolerance, atol=tolerance):
            return words
    at = int((seen - wanted).abs().nan_to_num(torch.inf).flatten().argmax())
    g, drift, was, right = (float(tensor.flatten()[at]) for tensor in (stale.g, stale.drift, seen, wanted))
    return f"{was:.6g} at position {at}, where g = {g:.6g} and w - w_bak = {drift:.6g}; expected {right:.6g}"
