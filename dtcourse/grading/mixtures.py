"""Which mixture of known tensors a float tensor is: what provenance values tell of integers, told of gradients.

A gradient that several ranks have averaged is c0 g0 + c1 g1 + ..., with the gradients g that they began with. As long
as these are independent, the numbers c can be read from the result, and they say what was done: who counts how much,
who counts twice, who is missing, what was divided by what.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch

TOLERANCE = 1e-6  # of values and amounts: whoever computes 2/3 in float32 has weighted right
_BAR = 16  # characters
_SIMPLE = 100  # the largest denominator that is written as a fraction

Mixture = Mapping[str, float]  # how much of each part; a part that is not named counts as 0


@dataclass(frozen=True, slots=True)
class Mistake:
    """A mixture that a likely mistake gives, and what to tell whoever made it."""

    mixture: Mixture
    advice: str


@dataclass(frozen=True, slots=True)
class Difference:
    """What a tensor is, in words; the advice of the mistake that gives it, if it is one of those; and a drawing."""

    seen: str
    advice: str | None = None
    drawing: str = ""


def difference(
    seen: torch.Tensor, wanted: Mixture, parts: Mapping[str, torch.Tensor], mistakes: Sequence[Mistake] = ()
) -> Difference | None:
    """What `seen` is instead of the mixture `wanted` of the parts; None if it is that mixture.

    All tensors are float64, of one shape.
    """
    right = sum((amount * parts[name] for name, amount in wanted.items()), torch.zeros_like(seen))
    close = torch.isclose(seen, right, rtol=TOLERANCE, atol=TOLERANCE)
    if close.all():
        return None
    found = mixture(seen, parts)
    if found is None:
        place = int((~close).flatten().nonzero()[0])
        values = f"{seen.flatten()[place]:.6g} at position {place} and not {right.flatten()[place]:.6g}"
        return Difference(f"{values}, which no adding up of {', '.join(parts)} gives")
    advice = next((m.advice for m in mistakes if same(found, m.mixture)), None)
    return Difference(text(found), advice, drawn(found, wanted))


def mean_mistakes(samples: Mapping[str, int], ranks: int) -> list[Mistake]:
    """What goes wrong where means over so many `samples` are averaged over `ranks`, some of which may have none."""

    def mixed(amount: Callable[[int], float]) -> Mixture:
        return {name: amount(n) for name, n in samples.items()}

    total = sum(samples.values())
    weigh = "Every rank counts the same here, however many samples it had: weight each by its samples"
    divide = "Divide by the number of samples of all ranks together"
    return [
        Mistake(mixed(lambda n: 1 / ranks), weigh),
        Mistake(mixed(lambda n: 1 / len(samples)), weigh),
        Mistake(mixed(lambda n: 1), f"Weight each by its samples, and {divide[0].lower()}{divide[1:]}"),
        Mistake(mixed(lambda n: n), divide),
        Mistake(mixed(lambda n: n / ranks), f"{divide}, not by the number of ranks"),
        Mistake(mixed(lambda n: n / total / ranks), "That is divided once too often: by the number of ranks as well"),
        Mistake(mixed(lambda n: n / total**2), "That is divided twice by the number of samples"),
    ]


def mixture(seen: torch.Tensor, parts: Mapping[str, torch.Tensor]) -> dict[str, float] | None:
    """How much of each part adds up to `seen`; None if nothing does, or if that is not certain."""
    columns, wanted = torch.stack([part.flatten() for part in parts.values()], 1), seen.flatten()  # (elements, parts)
    if not wanted.isfinite().all() or len(wanted) <= len(parts) or torch.linalg.matrix_rank(columns) < len(parts):
        return None
    amounts = torch.linalg.lstsq(columns, wanted[:, None]).solution.flatten()
    rest = (columns @ amounts - wanted).abs().max()
    if rest > TOLERANCE * max(wanted.abs().max(), columns.abs().max()):
        return None
    return dict(zip(parts, amounts.tolist(), strict=True))


def same(one: Mixture, other: Mixture) -> bool:
    """Whether two mixtures are the same, up to rounding."""
    return all(abs(one.get(name, 0.0) - other.get(name, 0.0)) < TOLERANCE for name in {*one, *other})


def text(mixed: Mixture) -> str:
    """ "1/2 g0 + 1/3 g1", "g0 - g2", "0"."""
    terms = "".join(_term(name, amount) for name, amount in mixed.items() if abs(amount) >= TOLERANCE)
    return f"{'-' if terms.startswith(' - ') else ''}{terms[3:]}" or "0"


def drawn(found: Mixture, wanted: Mixture) -> str:
    """A row for each part: how much there is of it, and how much there has to be."""
    longest = max((abs(amount) for amount in (*found.values(), *wanted.values())), default=1) or 1

    def bar(amount: float) -> str:
        return f"{fraction(amount):>6} {'=' * round(_BAR * abs(amount) / longest):<{_BAR}}"

    names = list(dict.fromkeys([*found, *wanted]))
    width = max(map(len, names))
    rows = [f"  {name:{width}}  {bar(found.get(name, 0))}  {bar(wanted.get(name, 0))}" for name in names]
    head = f"  {'':{width}}  {'':6} {'there is':<{_BAR}}  {'':6} there has to be"
    return "\n".join(row.rstrip() for row in (head, *rows))


def _term(name: str, amount: float) -> str:
    number = fraction(abs(amount))
    return (" - " if amount < 0 else " + ") + (name if number == "1" else f"{number} {name}")


def fraction(amount: float) -> str:
    """As a fraction, if it is a simple one."""
    simple = Fraction(amount).limit_denominator(_SIMPLE)
    return str(simple) if abs(simple - amount) < TOLERANCE else f"{amount:.4g}"
