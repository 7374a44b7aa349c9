"""Tensor fusion: many small tensors travel as one large one.

An all-reduce costs its latency however few bytes it moves. So what may be sent goes into one buffer, up to a limit:

    sizes in MiB       40  50  60  10 200  30       limit 128
    fused               a   a   b   a   c   b

A tensor goes into the first buffer with room for it. One that is larger than the limit goes alone. Only tensors of one
dtype on one device share a buffer.

Source: Sergeev and Del Balso, "Horovod: fast and easy distributed deep learning in TensorFlow" (2018), section 5.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch


def fused(tensors: Iterable[torch.Tensor], limit: int) -> list[list[torch.Tensor]]:
    """The tensors of each buffer, for buffers of `limit` bytes. The same on all ranks that give the same tensors."""
    buffers: list[list[torch.Tensor]] = []
    for tensor in tensors:
        room = (one for one in buffers if alike(one[0], tensor) and bytes_of(*one, tensor) <= limit)
        buffer = next(room, None)
        if buffer is None:
            buffers.append([tensor])
        else:
            buffer.append(tensor)
    return buffers


def alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether the two may share a buffer."""
    return one.dtype == other.dtype and one.device == other.device


def bytes_of(*tensors: torch.Tensor) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
