"""What the ranks have to hold in the end, as pure functions from a `Run` to findings; no exercise in particular."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from dtcourse.grading.findings import Finding
from dtcourse.grading.reading import counted, end_of, last_step, once, span_of, start_of, summed
from dtcourse.origins import contributions, position
from dtcourse.run import Run


@dataclass(frozen=True, slots=True)
class Holding:
    """What a rank has to hold in the end: a chunk (None: the whole tensor), summed over the ranks `of` of the group."""

    chunk: int | None
    of: tuple[int, ...]


def in_place(run: Run) -> Iterator[Finding]:
    """Nothing is returned, and the tensor is still what it was, but for its values."""
    for rank, result in enumerate(run.results):
        start, end = start_of(run, rank), end_of(run, rank)
        if result is not None:
            said = (
                f"rank {rank} returned a {type(result).__name__}: change the given tensor, in place, and return nothing"
            )
            yield Finding(said, last_step(run), rank)
        elif start is not None and end is not None and (start.shape, start.dtype) != (end.shape, end.dtype):
            was, is_ = (f"{t.dtype} {tuple(t.shape)}" for t in (start, end))
            yield Finding(f"rank {rank} made {is_} of its tensor, which was {was}", last_step(run), rank)


def holdings(
    run: Run, expected: Sequence[Sequence[Holding]], members: Sequence[int] | None = None
) -> Iterator[Finding]:
    """In the end the tensor of each rank holds these chunks; what is in its others does not matter.

    `members`: the global ranks of the group, if that is not the whole world. The tensors are provenance tensors.
    """
    if found := list(in_place(run)):
        yield from found
        return
    members = range(len(expected)) if members is None else members
    for rank, chunks in zip(members, expected, strict=True):
        start, end = start_of(run, rank), end_of(run, rank)
        if start is None or end is None:
            continue
        said = next(filter(None, (_wrong(start.flatten(), end.flatten(), h, members) for h in chunks)), None)
        if said:
            yield Finding(f"rank {rank} ends with {said}", last_step(run), rank)


def _wrong(start: torch.Tensor, end: torch.Tensor, holding: Holding, members: Sequence[int]) -> str | None:
    """What is wrong with a chunk, in words; its first wrong element speaks for it."""
    world, whole = len(members), holding.chunk is None
    chunk = "its tensor" if whole else f"chunk {holding.chunk}"
    first, stop = span_of(holding.chunk, len(start), world)
    wanted, seen = summed((first, stop), holding.of, world), end[first:stop]
    wrong = (seen != wanted).nonzero().flatten().tolist()
    if not wrong:
        return None
    place, value, right = first + wrong[0], int(seen[wrong[0]]), int(wanted[wrong[0]])
    should = f"it has to be {counted(once(holding.of, world), members)}"
    if torch.equal(start, end):
        them = "it" if whole else chunk
        return f"the tensor that it began with; {them} has to be {counted(once(holding.of, world), members)}"
    if value == right // len(holding.of):
        return f"the average in {chunk}; {should}"
    home, at = position(value, world) if value >= 0 else None, f"position {place}{'' if whole else f' ({chunk})'}"
    if home is None or home >= len(start):
        return f"{value} at {at}, which no adding up of the ranks' tensors gives; {should}"
    if home != place:
        return f"numbers of position {home} at {at}; {should}"
    return f"{counted(contributions(value, world), members)} in {chunk}, position {place}; {should}"


def numbers(run: Run, expected: torch.Tensor, chunks: Sequence[Sequence[int]]) -> Iterator[Finding]:
    """In the end the tensor of rank j holds what `expected` holds in the chunks `chunks[j]`, to the last bit.

    For numbers that are drawn: from a rank's own provenance tensor it could tell what all others were given.
    """
    if found := list(in_place(run)):
        yield from found
        return
    for rank, mine in enumerate(chunks):
        end = end_of(run, rank)
        for first, stop in (span_of(chunk, expected.numel(), len(chunks)) for chunk in mine if end is not None):
            if wrong := (end.flatten()[first:stop] != expected[first:stop]).nonzero().flatten().tolist():
                place = first + wrong[0]
                said = f"{end.flatten()[place]} at position {place}; with what the ranks were given it has to be"
                yield Finding(f"rank {rank} ends with {said} {expected[place]}", last_step(run), rank)
                break


def tensors(run: Run, expected: Sequence[torch.Tensor], tolerance: float) -> Iterator[Finding]:
    """In the end the tensor of each rank is this one, up to a relative `tolerance`."""
    if found := list(in_place(run)):
        yield from found
        return
    for rank, wanted in enumerate(expected):
        end = end_of(run, rank)
        if end is None or torch.allclose(end, wanted, rtol=tolerance, atol=tolerance):
            continue
        wrong = int((~torch.isclose(end, wanted, rtol=tolerance, atol=tolerance)).flatten().nonzero()[0])
        said = f"{end.flatten()[wrong]:.6g} at position {wrong}; expected {wanted.flatten()[wrong]:.6g}"
        yield Finding(f"rank {rank} ends with {said}", last_step(run), rank)
