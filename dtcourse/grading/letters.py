"""What messages of floats a run has to show, and what its ranks hold in the end; no exercise in particular.

Floats do not tell where they come from, as the tensors of `messages` do. What they are is found out by `mixtures`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from dtcourse.grading.findings import Finding, number_of
from dtcourse.grading.mixtures import TOLERANCE, Mistake, Mixture, difference, fraction, mixture, text
from dtcourse.grading.reading import end_of, last_step
from dtcourse.raw import dtype_name
from dtcourse.run import Run


@dataclass(frozen=True)
class Meant:
    """A float64 tensor that is asked for: `name` in words, as the mixture `wanted` of known `parts`."""

    name: str
    wanted: Mixture
    parts: Mapping[str, torch.Tensor]
    mistakes: Sequence[Mistake] = field(default=())

    def wrong(self, seen: torch.Tensor) -> tuple[str, str] | None:
        """What `seen` is and what is expected, with advice, both in words; None if it is what is asked for."""
        like = next(iter(self.parts.values()))
        if (seen.dtype, seen.numel()) != (like.dtype, like.numel()):
            kinds = [f"{dtype_name(tensor.dtype)} {tuple(tensor.shape)}" for tensor in (seen, like)]
            return f"{kinds[0]} as {self.name}", kinds[1]
        if (found := difference(seen.view_as(like), self.wanted, self.parts, self.mistakes)) is None:
            return None
        right = text(self.wanted)
        return f"{found.seen} as {self.name}", f"{right}. {found.advice}" if found.advice else right


@dataclass(frozen=True)
class Count:
    """A whole number that is asked for, as an int64 tensor of one element."""

    name: str
    value: int

    def wrong(self, seen: torch.Tensor) -> tuple[str, str] | None:
        if seen.dtype == torch.int64 and seen.tolist() == [self.value]:
            return None
        return f"{dtype_name(seen.dtype)} {seen.tolist()} as {self.name}", f"int64 [{self.value}]"


@dataclass(frozen=True)
class Known:
    """A float64 tensor that is asked for, and known by name; `others`, of any shape, may be taken for it."""

    name: str
    wanted: torch.Tensor
    others: Mapping[str, torch.Tensor] = field(default_factory=dict)

    def wrong(self, seen: torch.Tensor) -> tuple[str, str] | None:
        """What `seen` is and what is expected, both in words; None if it is what is asked for."""
        if (seen.dtype, seen.numel()) == (self.wanted.dtype, self.wanted.numel()) and _same(seen, self.wanted):
            return None
        if told := self.told(seen):
            return told, self.name
        kinds = [f"{dtype_name(tensor.dtype)} {tuple(tensor.shape)}" for tensor in (seen, self.wanted)]
        return f"{kinds[0]} that the whole model has nowhere", f"{self.name}, {kinds[1]}"

    def told(self, seen: torch.Tensor) -> str | None:
        """The known tensor that this is, or of which it is a multiple, in words."""
        if seen.isnan().any():
            return "nan"
        if not seen.any():
            return "zeros"
        alike = {
            n: t.flatten() for n, t in {self.name: self.wanted, **self.others}.items() if t.numel() == seen.numel()
        }
        for name, tensor in alike.items():
            if _same(seen, tensor):
                return f"{name}, as {dtype_name(seen.dtype)}" if seen.dtype != tensor.dtype else name
        for name, tensor in alike.items():
            if tensor.any() and (found := mixture(seen.flatten().double(), {name: tensor})):
                return f"{name}, times {fraction(found[name])}"
        return None


def _same(seen: torch.Tensor, wanted: torch.Tensor) -> bool:
    return torch.allclose(seen.flatten().double(), wanted.flatten(), rtol=TOLERANCE, atol=TOLERANCE)


def letters(
    run: Run, rank: int, expected: Mapping[int, Sequence[Meant | Count | Known]], who: str
) -> Iterator[Finding]:
    """`rank` sends these to each receiver, in this order, and nothing else; the receivers may come in any order.

    `who` does so, in words: "a worker".
    """
    for e in run.messages(rank):
        if e.peer not in expected:
            yield Finding(f"rank {rank} sent to rank {e.peer}; {who} does not", e.step, rank, e.line)
    for to, meant in expected.items():
        seen = [e for e in run.messages(rank) if e.peer == to]
        for e, one in zip(seen, meant, strict=False):
            if wrong := one.wrong(e.payload):
                yield Finding(f"rank {rank} sent rank {to} {wrong[0]}; expected {wrong[1]}", e.step, rank, e.line)
        sent = f"rank {rank} sent rank {to} {number_of(len(seen), 'message')}; {who} sends {len(meant)}"
        if len(seen) < len(meant):
            yield Finding(f"{sent}: {meant[len(seen)].name} is missing", last_step(run), rank)
        elif len(seen) > len(meant):
            e = seen[len(meant)]
            known = meant[0].told(e.payload) if isinstance(meant[0], Known) else None
            what = known or number_of(e.payload.numel(), "element")
            yield Finding(f"{sent}: {what} too many", e.step, rank, e.line)


def ends_with(run: Run, rank: int, meant: Meant) -> Iterator[Finding]:
    """The first tensor that `rank` was given holds this when its function returns."""
    end = end_of(run, rank)
    if end is not None and (wrong := meant.wrong(end)):
        yield Finding(f"rank {rank} ends with {wrong[0]}; expected {wrong[1]}", last_step(run), rank)
