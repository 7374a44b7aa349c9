"""Tensors whose values tell where they come from, so that a chunk can be followed through any code.

Element `p` of rank `r` is `16**r + p * 16**world`. Whatever is added up, copied, sliced or sent through NumPy, the
sum still says how often each rank contributed (its hexadecimal digits) and which position was summed (the rest,
divided by the number of contributions).
"""

from __future__ import annotations

import torch

MAX_WORLD = 8


def provenance(world: int, rank: int, length: int) -> torch.Tensor:
    """The int64 tensor, shape `(length,)`, that rank `rank` of `world` (at most 8) starts with."""
    if not 1 <= world <= MAX_WORLD:
        raise ValueError(
            f"provenance works for 1 to {MAX_WORLD} ranks, not {world}: each rank needs a digit of its own"
        )
    if not 0 <= rank < world:
        raise ValueError(f"rank {rank} is not in a world of {world}")
    limit = 2**63 // 16**world // (15 * world)
    if length > limit:
        raise ValueError(f"at most {limit} elements fit in a world of {world}, not {length}")
    return 16**rank + torch.arange(length, dtype=torch.int64) * 16**world


def contributions(value: int, world: int) -> tuple[int, ...]:
    """How often each rank contributed to `value`."""
    return tuple(value // 16**rank % 16 for rank in range(world))


def position(value: int, world: int) -> int | None:
    """The position in the tensor that was summed into `value`; None if different positions were mixed."""
    parts = sum(contributions(value, world))
    rest = value // 16**world
    return rest // parts if parts and rest % parts == 0 else None
