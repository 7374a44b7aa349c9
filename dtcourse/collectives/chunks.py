"""How a collective cuts a tensor into chunks, one for each rank, and finds them again: as views, nothing is copied."""

from __future__ import annotations

import torch


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """The elements of a contiguous tensor in one row, as a view: who writes into it writes into the tensor."""
    if not tensor.is_contiguous():
        raise ValueError("collectives work in place on contiguous tensors: pass tensor.contiguous()")
    return tensor.view(-1)


def chunks_of(tensor: torch.Tensor, world: int) -> tuple[torch.Tensor, ...]:
    """`world` views of the tensor's elements; the first (elements mod world) are one element longer."""
    return flat(tensor).tensor_split(world)


def chunk_range(tensor: torch.Tensor, world: int, first: int, stop: int) -> torch.Tensor:
    """One view of the chunks first, first+1, ..., stop-1 of `world`, which lie one after the other."""
    short, longer = divmod(tensor.numel(), world)
    begin, end = (chunk * short + min(chunk, longer) for chunk in (first, stop))
    return flat(tensor)[begin:end]
