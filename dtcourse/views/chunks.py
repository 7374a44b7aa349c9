"""What a tensor holds, chunk by chunk: who contributed to it, and from which position. Pure functions over tensors.

Chunks are cut as `torch.tensor_split` cuts them. What a chunk holds is read from its values (`dtcourse.origins`),
so a wrong algorithm is shown as it really went: twice the same rank, another chunk's positions, sums of different
positions. Values that are not provenance values have no pieces, only numbers.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from dtcourse.origins import MAX_WORLD, contributions, position, provenance

MOST_PIECES = 8  # a chunk in more pieces than this is drawn as one piece of unknown history


@dataclass(frozen=True, slots=True)
class Piece:
    """Neighbouring elements [start, stop) that share a history.

    counts   how often each rank contributed; None if the values do not tell
    moved    how far the summed position lies from where the piece is now: 0 in its place, None if mixed or unknown
    """

    start: int
    stop: int
    counts: tuple[int, ...] | None
    moved: int | None

    @property
    def complete(self) -> bool:
        """Every rank once, in its own place."""
        return self.moved == 0 and self.counts is not None and all(count == 1 for count in self.counts)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Elements [start, stop) of a rank's tensor: their pieces (none if not decoded) and their first numbers."""

    start: int
    stop: int
    pieces: tuple[Piece, ...]
    numbers: tuple[str, ...]

    @property
    def complete(self) -> bool:
        return bool(self.pieces) and all(piece.complete for piece in self.pieces)


def cuts(length: int, parts: int) -> list[tuple[int, int]]:
    """Where `torch.tensor_split` cuts: the first `length mod parts` chunks are one element longer."""
    small, longer = divmod(length, parts)
    ends = [small * i + min(i, longer) for i in range(parts + 1)]
    return list(pairwise(ends))


def is_provenance(tensor: torch.Tensor, world: int, rank: int) -> bool:
    """Whether this is the tensor that `provenance` gives to `rank`."""
    if tensor.dtype != torch.int64 or world > MAX_WORLD or not tensor.numel():
        return False
    try:
        return torch.equal(tensor.flatten(), provenance(world, rank, tensor.numel()))
    except ValueError:  # too long to be one
        return False


def are_sums_in_place(tensors: Sequence[torch.Tensor], world: int) -> bool:
    """Whether each of the ranks' tensors holds sums of provenance values, each element in its own place.

    So begins an algorithm that is given the work of another. Ordinary integers are not taken for it: every element
    has to tell its own position, and for one element alone that proves nothing.
    """
    if world > MAX_WORLD or not tensors:
        return False
    return all(t.dtype == torch.int64 and t.numel() > 1 and _in_place(t.flatten(), world) for t in tensors)


def _in_place(values: torch.Tensor, world: int) -> bool:
    parts = sum((values // 16**rank).remainder(16) for rank in range(world))
    return bool(((values > 0) & (parts > 0) & (values // 16**world == parts * torch.arange(len(values)))).all())


def pieces(values: torch.Tensor, world: int, offset: int = 0) -> tuple[Piece, ...]:
    """Cut int64 `values` of shape (length,), which lie at `offset` in the whole tensor, where their history changes."""
    return _between(values, 0, len(values), changes(values, world), world, offset)


def changes(values: torch.Tensor, world: int) -> list[int]:
    """Where in `values` another history begins than that of the element before."""
    digits = values.remainder(16**world)
    parts = sum((values // 16**rank).remainder(16) for rank in range(world))
    rest, parts_or_1 = values // 16**world, parts.clamp(min=1)
    known = (values >= 0) & (parts > 0) & (rest.remainder(parts_or_1) == 0)
    moved = torch.where(known, rest // parts_or_1 - torch.arange(len(values)), torch.iinfo(torch.int64).min)
    differ = (digits.diff() != 0) | (moved.diff() != 0) | ((values < 0).diff() != 0)
    return (differ.nonzero().flatten() + 1).tolist()


def _between(
    values: torch.Tensor, start: int, stop: int, all_changes: list[int], world: int, offset: int = 0
) -> tuple[Piece, ...]:
    """The pieces of elements [start, stop)."""
    if start == stop:
        return ()
    inside = all_changes[bisect_right(all_changes, start) : bisect_left(all_changes, stop)]
    if len(inside) >= MOST_PIECES:
        return (Piece(offset + start, offset + stop, None, None),)
    ends = [start, *inside, stop]
    return tuple(_piece(int(values[a]), offset + a, offset + b, world) for a, b in pairwise(ends))


def _piece(value: int, start: int, stop: int, world: int) -> Piece:
    if value < 0:
        return Piece(start, stop, None, None)
    summed = position(value, world)
    return Piece(start, stop, contributions(value, world), None if summed is None else summed - start)


def row(tensor: torch.Tensor, world: int, decoded: bool) -> tuple[Chunk, ...]:
    """The chunks of one rank's tensor; `decoded` says that its values are provenance values."""
    values = tensor.flatten()
    most = max(2, 24 // world)  # numbers are shown in a chunk's box: there is no room for more
    decoded = decoded and values.dtype == torch.int64
    all_changes = changes(values, world) if decoded else []
    return tuple(
        Chunk(
            start,
            stop,
            _between(values, start, stop, all_changes, world) if decoded else (),
            tuple(number(v) for v in values[start : min(stop, start + most)].tolist()),
        )
        for start, stop in cuts(len(values), world)
    )


def number(value: float) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def which(payload: torch.Tensor, tensor: torch.Tensor | None, world: int, decoded: bool) -> tuple[int | None, str]:
    """Which chunk of the sender's tensor a payload is: its number, if it is exactly one chunk, and words for it."""
    values = payload.flatten()
    if not len(values):
        return None, "nothing (0 elements)"
    length = tensor.numel() if tensor is not None else None
    if decoded and values.dtype == torch.int64:
        return _by_position(values, length, world)
    same = [
        i
        for i, (start, stop) in enumerate(cuts(length, world) if tensor is not None else ())
        if values.dtype == tensor.dtype and torch.equal(values, tensor.flatten()[start:stop])
    ]
    if len(same) == 1:
        return same[0], f"chunk {same[0]}"
    return None, f"{len(values)} element{'s' if len(values) != 1 else ''}"


def _by_position(values: torch.Tensor, length: int | None, world: int) -> tuple[int | None, str]:
    first = position(int(values[0]), world)
    if first is None or any(piece.moved != first for piece in pieces(values, world)):
        return None, f"{len(values)} elements of mixed positions"
    span = (first, first + len(values))
    if length is not None and span in cuts(length, world):
        chunk = cuts(length, world).index(span)
        return chunk, f"chunk {chunk}"
    if span == (0, length):
        return None, "the whole tensor"
    return None, f"position {first}" if len(values) == 1 else f"positions {span[0]} to {span[1] - 1}"
