"""Where the bytes of a tensor lie in a row in this process's memory, for others to read or to be written to.

For a contiguous tensor of the CPU that is the tensor itself. A strided one goes through a copy. One on a GPU goes
through pinned memory, which the GPU reads and writes by itself; a large one in pieces, so that a piece is copied
while the ranks exchange another.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

PIECE = 4 << 20  # bytes of a GPU's tensor that are copied at a time


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """The elements, to be read."""
    tensor = tensor.detach()
    if not on_gpu(tensor):
        return tensor.contiguous().view(-1)
    return space(tensor).copy_(tensor).view(-1)


def buffer(tensor: torch.Tensor) -> torch.Tensor:
    """Where others may put bytes: the tensor itself, or a stand-in to copy from afterwards."""
    tensor = tensor.detach()
    return tensor if tensor.is_contiguous() and not on_gpu(tensor) else space(tensor)


@contextmanager
def contiguous(*tensors: torch.Tensor) -> Iterator[list[torch.Tensor]]:
    """The elements of each tensor, to be read and changed: what was copied is copied back at the end."""
    tensors = tuple(t.detach() for t in tensors)
    buffers = [space(t).copy_(t) if on_gpu(t) else t.contiguous() for t in tensors]  # the tensor itself, if it is
    yield [b.view(-1) for b in buffers]
    for tensor, filled in zip(tensors, buffers, strict=True):
        if filled is not tensor:
            tensor.copy_(filled)


def pieces(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The elements, to be read and changed, one piece after the other; each goes back while the next is worked on."""
    if not on_gpu(tensor) or tensor.numel() * tensor.element_size() <= PIECE:
        with contiguous(tensor) as (whole,):
            yield whole
        return
    tensor = tensor.detach()
    here, step = tensor.contiguous().view(-1), PIECE // tensor.element_size()
    host, back = space(here), torch.cuda.Stream()
    arrivals = [_copied(there, piece) for there, piece in zip(host.split(step), here.split(step), strict=True)]
    for arrival, there, piece in zip(arrivals, host.split(step), here.split(step), strict=True):
        arrival.synchronize()
        yield there
        with torch.cuda.stream(back):
            piece.copy_(there, non_blocking=True)
    back.synchronize()
    if not tensor.is_contiguous():
        tensor.copy_(here.view(tensor.shape))


def _copied(host: torch.Tensor, device: torch.Tensor) -> torch.cuda.Event:
    """Ask for a copy to the host; the event of its end."""
    host.copy_(device, non_blocking=True)
    event = torch.cuda.Event()
    event.record()
    return event


def space(like: torch.Tensor) -> torch.Tensor:
    """Memory of this process for the elements of `like`, in a row; pinned if `like` is on a GPU."""
    return torch.empty(like.shape, dtype=like.dtype, device="cpu", pin_memory=on_gpu(like))


def on_gpu(tensor: torch.Tensor) -> bool:
    return tensor.is_cuda
