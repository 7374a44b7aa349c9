"""What a reader's function made of layers, held against the best cut into stages, as findings; no processes.

A cut is how many layers each stage takes. The best one comes from the course's own `partition`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate, pairwise

from dtcourse.grading.cuts import SHOWN, Answer, Case
from dtcourse.grading.findings import Finding, number_of
from dtcourse.pipeline.partition import partition

_BAR = 24  # characters

Cut = Sequence[int]


def best_cut(case: Case) -> list[int] | None:
    """The best cut; None if none keeps within the limit."""
    try:
        cut = partition(case.costs, case.stages, case.memory, math.inf if case.memory is None else case.limit)
    except ValueError:
        return None
    return [len(stage) for stage in cut]


# -- findings ----------------------------------------------------------------------------------------------------------


def not_the_best(function: str, cases: Sequence[Case], answers: Sequence[Answer]) -> Iterator[Finding]:
    """Each answer is a cut, and none is better; where there is none, it was refused. The first one that is not so."""
    answers = [Answer(*one) for one in answers]  # from a sandbox they come as plain tuples
    why = partial(mistake, cases, answers)
    for case, one in zip(cases, answers, strict=True):
        if wrong := what_is_wrong(case, one) or too_large(case, one.cut or [], why):
            said, drawing = wrong
            yield Finding(f"{function}{case} {said}", drawing=drawing)
            return  # the cases go from simple to hard


def what_is_wrong(case: Case, answer: Answer) -> tuple[str, str] | None:
    """In words, and drawn; None if the answer is a cut, or a refusal where there is none."""
    best = best_cut(case)
    if answer.refused:
        return wrong_refusal(case, answer.shown, best)
    returned = f"returned {answer.shown}"
    if best is None:
        why = f"no cut into {number_of(case.stages, 'stage')} keeps each within {case.limit}: raise ValueError"
        return f"{returned}; {why}", drawn(case, answer.cut) if answer.cut and is_cut(case, answer.cut) else ""
    if answer.cut is None or not is_cut(case, answer.cut):
        return f"{returned}, {no_cut(case, answer.cut)}; {best} is a cut, and the best", ""
    if answer.changed:
        return "has changed the lists that it was given: leave them as they are", ""
    return None


def too_large(case: Case, cut: Cut, why: Callable[[], str]) -> tuple[str, str] | None:
    """What is too large in a cut, in words, and drawn; None if nothing is. `why`: asked if another is better."""
    if (best := best_cut(case)) is None:
        return None
    both = f"  there is\n{drawn(case, cut)}\n  there can be\n{drawn(case, best)}"
    for stage, held in enumerate(sums(case.memory or [], cut)):
        if held > case.limit:
            return f"returned {cut}: stage {stage} holds {held}, and the limit is {case.limit}", both
    seen, least = (max(sums(case.costs, each)) for each in (cut, best))
    if seen == least:
        return None
    largest = f"the largest is stage {sums(case.costs, cut).index(seen)}, which takes {seen}"
    return f"returned {cut}: {largest}, and {least} is possible{why()}", both


def wrong_refusal(case: Case, message: str, best: Cut | None) -> tuple[str, str] | None:
    """What is wrong with a ValueError of this message."""
    raised = f"raised ValueError: {message}"
    if best is not None:
        return f"{raised}; but there is a cut within {case.limit}, {best}", drawn(case, best)
    if str(case.limit) in message:
        return None
    return f"{raised}. There is no cut, so that is right; but the message does not say which limit: {case.limit}", ""


def is_cut(case: Case, cut: Cut) -> bool:
    """Each stage has a layer or more, and together they have all."""
    return len(cut) == case.stages and min(cut) > 0 and sum(cut) == len(case.costs)


def no_cut(case: Case, cut: Cut | None) -> str:
    """Why that is none, in words."""
    layers = len(case.costs)
    if cut is None:
        return "which is no list of whole numbers: how many layers each stage takes"
    rising = all(one < other for one, other in pairwise(cut))
    if rising and cut and (cut[0] == 0 or cut[-1] == layers or len(cut) == case.stages - 1) and sum(cut) != layers:
        return "which looks like the layers at which stages begin or end, and not how many each stage takes"
    if len(cut) != case.stages:
        return f"which has {number_of(len(cut), 'stage')} and not {case.stages}"
    if min(cut) < 1:
        return f"in which stage {cut.index(min(cut))} takes {number_of(min(cut), 'layer')}: each takes 1 at least"
    return f"which has {number_of(sum(cut), 'layer')} in all, and there are {layers}"


def sums(numbers: Sequence[int], cut: Cut) -> list[int]:
    """What each stage has of these numbers, one a layer."""
    total = [0, *accumulate(numbers)]
    return [total[stop] - total[start] for start, stop in pairwise((0, *accumulate(cut)))] if numbers else []


# -- likely mistakes ---------------------------------------------------------------------------------------------------


def equally_many(case: Case, cut: Cut) -> bool:
    """Stages of equally many layers."""
    return max(cut) - min(cut) <= 1


def filled(case: Case, cut: Cut) -> bool:
    """Each stage but the last ends just before it has more than its share of all costs, or just when it has it."""
    share, stops = sum(case.costs) / case.stages, [*accumulate(cut)]
    for stage, own in enumerate(sums(case.costs, cut)[:-1]):
        after = stops[stage]
        before = (own <= share or cut[stage] == 1) and own + case.costs[after] >= share
        when = own - case.costs[after - 1] <= share <= own
        forced = all(size == 1 for size in cut[stage + 1 :])  # the others need the layers that are left
        if not (before or when or forced):
            return False
    return True


def balanced_memory(case: Case, cut: Cut) -> bool:
    """The memory is cut as well as can be, and not the time."""
    if case.memory is None:
        return False
    best = best_cut(Case(case.memory, case.stages))
    return best is not None and max(sums(case.memory, cut)) == max(sums(case.memory, best))


def least_squares(case: Case, cut: Cut) -> bool:
    """No layer that moves to a neighbour makes the sum of squares smaller."""
    squares = lambda cut: sum(own**2 for own in sums(case.costs, cut))  # noqa: E731
    moved = (
        [size + (stage == to) - (stage == here) for stage, size in enumerate(cut)]
        for here in range(case.stages)
        for to in (here - 1, here + 1)
        if 0 <= to < case.stages and cut[here] > 1
    )
    return all(squares(cut) <= squares(other) for other in moved)


MISTAKES: dict[str, Callable[[Case, Cut], bool]] = {
    "All stages have equally many layers; but layers do not cost the same": equally_many,
    "Each stage is filled up to its share of the whole; what that leaves over or short, the last one has": filled,
    "It balances the memory; that only has to keep within the limit": balanced_memory,
    "It makes the stages even; but only the largest counts, however small the others are": least_squares,
}


def mistake(cases: Sequence[Case], answers: Sequence[Answer]) -> str:
    """What to tell whoever made a likely mistake, if it explains all answers that are cuts."""
    pairs = [(case, one.cut) for case, one in zip(cases, answers, strict=True) if one.cut and is_cut(case, one.cut)]
    words = (words for words, is_it in MISTAKES.items() if all(is_it(case, cut) for case, cut in pairs))
    return next((f". {each}" for each in words), "")


# -- drawing -----------------------------------------------------------------------------------------------------------


def drawn(case: Case, cut: Cut) -> str:
    """A row for each stage: what it takes, as a bar too, and its layers; what it holds, if that matters."""
    taken, ends = sums(case.costs, cut), [*accumulate(cut)]
    scale = min(1.0, _BAR / max(1, *taken))
    held = [f"   holds {own}" for own in sums(case.memory or [], cut)] or [""] * len(cut)
    layers = [" ".join(map(str, case.costs[stop - size : stop])) for size, stop in zip(cut, ends, strict=True)]
    if len(case.costs) > SHOWN:
        layers = [number_of(size, "layer") for size in cut]
    bars = ["=" * round(own * scale) for own in taken]
    widths = [max(map(len, column)) for column in ([str(own) for own in taken], bars, layers)]
    rows = zip(taken, bars, layers, held, strict=True)
    return "\n".join(
        f"  stage {stage}  {own:>{widths[0]}} {bar:<{widths[1]}}  {which:<{widths[2]}}{holds}".rstrip()
        for stage, (own, bar, which, holds) in enumerate(rows)
    )
