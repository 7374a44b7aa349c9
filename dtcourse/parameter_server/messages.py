"""What travels between workers and servers: small headers that say what comes, and the tensors themselves.

A header is five int64 on the CPU. A worker announces itself (HELLO), asks for parameters (PULL), brings gradients
(PUSH, the tensor follows) and leaves (FINISH). A server describes the model (LAYOUT, a text follows) and answers a
pull or a push with PARAMETERS (the tensor follows).

Headers are sent inside `region("control")`: a recorded run counts them in no byte rule, so its bytes are those of
gradients and parameters alone. Messages of one pair of ranks arrive in order, so a server that hears a header from any
rank, and then receives from that rank, gets what the header announced.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import torch
import torch.distributed as dist

from dtcourse.events import region


class Kind(IntEnum):
    HELLO = 1
    PULL = 2
    PUSH = 3
    FINISH = 4
    LAYOUT = 5
    PARAMETERS = 6


class Header(NamedTuple):
    kind: int
    sender: int  # global rank
    step: int = 0  # that begins with these parameters, or that this gradient belongs to
    version: int = 0  # of the parameters: how many updates made them
    count: int = 0  # of a push: samples; of a layout: bytes


class Sent(NamedTuple):
    """A message under way. Its tensor must live, unchanged, until it has arrived."""

    work: dist.Work
    tensor: torch.Tensor

    def wait(self) -> None:
        self.work.wait()


class Wire:
    """The way between two ranks: headers as CPU tensors, and tensors on `device`.

    Every rank makes one, at the same time: NCCL carries no CPU tensors and cannot receive from any rank, so with
    parameters on a GPU the headers get a gloo group of their own.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._control = dist.group.WORLD if device.type == "cpu" else dist.new_group(backend="gloo")

    def tell(self, rank: int, kind: Kind, step: int = 0, version: int = 0, count: int = 0) -> Sent:
        """Start to send a header."""
        header = torch.tensor(Header(kind, dist.get_rank(), step, version, count), device="cpu")
        with region("control"):
            return Sent(dist.isend(header, rank, group=self._control), header)

    def hear(self, rank: int | None = None) -> Header:
        """The next header, from `rank` or from any rank. Raises ConnectionError if that rank is dead."""
        header = torch.empty(len(Header._fields), dtype=torch.int64, device="cpu")
        with region("control"):
            work = dist.irecv(header, rank, group=self._control)
        work.wait()  # outside: waiting is no work of anybody's
        return Header(*header.tolist())

    def tell_text(self, rank: int, text: str) -> list[Sent]:
        content = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
        sent = self.tell(rank, Kind.LAYOUT, count=len(content))
        with region("control"):
            return [sent, Sent(dist.isend(content, rank, group=self._control), content)]

    def hear_text(self, rank: int) -> str:
        """Raises RuntimeError if the rank answers what was asked before."""
        header = self.hear(rank)
        if header.kind != Kind.LAYOUT:
            raise RuntimeError(
                f"server {rank} still answers an earlier Worker of this rank: keep one Worker for the whole training"
            )
        content = torch.empty(header.count, dtype=torch.uint8, device="cpu")
        with region("control"):
            work = dist.irecv(content, rank, group=self._control)
        work.wait()
        return bytes(content.tolist()).decode()

    def send(self, rank: int, tensor: torch.Tensor) -> Sent:
        """Start to send a tensor, whose header is on its way."""
        return Sent(dist.isend(tensor, rank), tensor)

    def receive(self, rank: int, tensor: torch.Tensor) -> dist.Work:
        """Start to receive a tensor, whose header has arrived."""
        return dist.irecv(tensor, rank)
