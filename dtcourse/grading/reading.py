"""Reads from a run what all expectations need, and says it in the same words. Tensors are `provenance` tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dtcourse.events import RETURN
from dtcourse.grading.findings import number_of
from dtcourse.origins import position
from dtcourse.run import Run
from dtcourse.views.chunks import cuts, pieces, which


def start_of(run: Run, rank: int) -> torch.Tensor | None:
    """The tensor that the rank began with: what it was given, whatever its own record says, if that is known."""
    if run.given:
        return next(iter(run.given[rank]), None)
    return next((e.arguments[0] for e in run.events if e.rank == rank and e.arguments), None)


def end_of(run: Run, rank: int) -> torch.Tensor | None:
    """The same tensor as it stood when the function returned."""
    return next((e.arguments[0] for e in run.events if e.rank == rank and e.kind == RETURN and e.arguments), None)


def last_step(run: Run) -> int:
    """The step after which nothing moves any more."""
    return max((e.step for e in run.messages()), default=0)


def summed(span: tuple[int, int], of: Sequence[int], world: int) -> torch.Tensor:
    """What positions [start, stop) hold, int64, once the ranks `of` are added up."""
    return sum(16**rank for rank in of) + len(of) * torch.arange(*span, dtype=torch.int64) * 16**world


Chunks = int | range | None  # one, several neighbours, or the whole tensor


def name_of(values: torch.Tensor, length: int, world: int, parts: int) -> tuple[Chunks, str]:
    """Which of the `parts` chunks of a tensor of `length` elements this is, if it is any, and words for it."""
    if values.dtype != torch.int64 or not 0 < values.numel() <= length:
        return None, number_of(values.numel(), "element")
    first = position(int(values.flatten()[0]), world)
    if first is not None and not 0 <= first <= length - values.numel():
        return None, f"{number_of(values.numel(), 'number')} that no adding up of the ranks' tensors gives"
    span, spans = summed_positions(values, world), list(enumerate(cuts(length, parts)))
    begins = {begin: chunk for chunk, (begin, stop) in spans if begin < stop}
    stops = {stop: chunk for chunk, (begin, stop) in spans if begin < stop}
    if span == (0, length) and parts > 1:
        return None, "the whole tensor"
    if span is None or span[0] not in begins or span[1] not in stops:
        return None, which(values, None, world, True)[1]
    chunk = begins[span[0]] if span in cuts(length, parts) else range(begins[span[0]], stops[span[1]] + 1)
    return chunk, chunk_name(chunk)


def span_of(chunk: Chunks, length: int, parts: int) -> tuple[int, int]:
    """The positions [start, stop) of chunks, of which the tensor has `parts`."""
    if chunk is None:
        return 0, length
    spans = cuts(length, parts)
    return (spans[chunk[0]][0], spans[chunk[-1]][1]) if isinstance(chunk, range) else spans[chunk]


def summed_positions(values: torch.Tensor, world: int) -> tuple[int, int] | None:
    """The positions [start, stop) that these values are sums of; None if they are not neighbours in their order."""
    if values.dtype != torch.int64 or not values.numel():
        return None
    start = position(int(values.flatten()[0]), world)
    if start is None or any(piece.moved != start for piece in pieces(values.flatten(), world)):
        return None
    return start, start + values.numel()


def chunk_name(chunk: Chunks) -> str:
    """ "chunk 1", "chunks 1 and 2", "chunks 0 to 3", "the whole tensor"."""
    if chunk is None:
        return "the whole tensor"
    if isinstance(chunk, int) or len(chunk) == 1:
        return f"chunk {chunk if isinstance(chunk, int) else chunk[0]}"
    return f"chunks {chunk[0]} {'and' if len(chunk) == 2 else 'to'} {chunk[-1]}"


def chunk_text(chunk: Chunks, length: int, parts: int) -> str:
    """ "chunk 1 (positions 3 to 5)", "the whole tensor"."""
    if chunk is None:
        return "the whole tensor"
    start, stop = span_of(chunk, length, parts)
    return f"{chunk_name(chunk)} ({f'position {start}' if stop - start == 1 else f'positions {start} to {stop - 1}'})"


def once(of: Sequence[int], world: int) -> tuple[int, ...]:
    """How often each rank counts if the ranks `of` count once."""
    return tuple(int(rank in of) for rank in range(world))


def counted(counts: Sequence[int], members: Sequence[int]) -> str:
    """ "the sum of ranks 0 and 1 (rank 1 counted twice)"; `counts` in the order of `members`."""
    there = [rank for rank, count in zip(members, counts, strict=True) if count]
    if not there:
        return "nobody's numbers"
    if len(there) == 1:
        text = f"the numbers of rank {there[0]} alone"
    elif len(there) == len(members) > 2:
        text = "the sum of all ranks"
    else:
        text = f"the sum of ranks {', '.join(map(str, there[:-1]))} and {there[-1]}"
    often = [(rank, count) for rank, count in zip(members, counts, strict=True) if count > 1]
    times = ", ".join(f"rank {rank} counted {'twice' if count == 2 else f'{count} times'}" for rank, count in often)
    return f"{text} ({times})" if often else text
