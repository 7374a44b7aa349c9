"""What travels between two stages: a tensor, after a header that says what it is.

Nobody tells a stage the shape of its inputs; it is found by running. The header is a fixed number of int64: dtype,
whether a gradient has to come back, number of dimensions, sizes. It is sent inside `region("control")`, so the bytes
of a recorded run are those of activations and gradients alone. A gradient needs no header: it has the shape of the
activation it belongs to.

Cost: one small message more a boundary, that is one latency. torch.distributed.pipelining finds shapes once, by a trial
run, and needs all batches to be alike; here each batch may have its own size.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.distributed as dist

from dtcourse.events import region

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
MOST_DIMENSIONS = 8


class Description(NamedTuple):
    """What a header says of a tensor."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    requires_grad: bool

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')} {self.shape}"


def header_of(tensor: torch.Tensor) -> torch.Tensor:
    """The header: int64 of a fixed length, on the tensor's device. Raises TypeError if it is no activation."""
    if not isinstance(tensor, torch.Tensor) or tensor.dtype not in DTYPES or tensor.dim() > MOST_DIMENSIONS:
        what = f"{tensor.dtype} {tuple(tensor.shape)}" if isinstance(tensor, torch.Tensor) else type(tensor).__name__
        raise TypeError(f"{what} was to be handed on: let the layers return one floating-point tensor")
    sizes = [*tensor.shape, *[0] * (MOST_DIMENSIONS - tensor.dim())]
    return torch.tensor(
        [DTYPES.index(tensor.dtype), tensor.requires_grad, tensor.dim(), *sizes],
        dtype=torch.int64,
        device=tensor.device,
    )


def empty_header() -> torch.Tensor:
    return torch.empty(3 + MOST_DIMENSIONS, dtype=torch.int64)


def read_header(header: torch.Tensor) -> Description:
    dtype, requires_grad, dimensions, *sizes = header.tolist()
    return Description(DTYPES[dtype], tuple(sizes[:dimensions]), bool(requires_grad))


def send_activation(tensor: torch.Tensor, to: int, group: dist.ProcessGroup | None = None) -> None:
    """Send a tensor of any shape to the rank `to` of the group. Raises TypeError as `header_of` does."""
    with region("control"):
        send(header_of(tensor), to, group)
    send(tensor.detach(), to, group)


def receive_activation(source: int, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """Receive what `send_activation` sent, on the default device: a leaf that asks for a gradient if its sender does.

    With `requires_grad` set, `tensor.grad` is after the backward pass what has to travel back.
    """
    header = empty_header()
    with region("control"):
        receive(header, source, group)
    described = read_header(header)
    tensor = torch.empty(described.shape, dtype=described.dtype)
    receive(tensor, source, group)
    return tensor.requires_grad_(described.requires_grad)


def send(tensor: torch.Tensor, to: int, group: dist.ProcessGroup | None = None) -> None:
    _do(dist.P2POp(dist.isend, tensor.contiguous(), group=group, group_peer=to))


def receive(tensor: torch.Tensor, source: int, group: dist.ProcessGroup | None = None) -> None:
    _do(dist.P2POp(dist.irecv, tensor, group=group, group_peer=source))


def _do(operation: dist.P2POp) -> None:
    for work in dist.batch_isend_irecv([operation]):
        work.wait()
