"""Parallel arms on different ranks: an Inception block, whose four arms need the same input and nothing of each other.

    block = ParallelBranches(inception_arms(192, one=64, three=(96, 128), five=(16, 32), pool=32))

Every rank has the input (what stands around the block is on all ranks), runs its own arms, and sends their outputs to
all others, so that each can put them side by side and go on:

               forward                              backward
    inputs     (nothing)                            all-reduce: each arm has a summand of their gradient
    outputs    each rank sends its own to all       each rank keeps the gradient of its own

Cost: with N ranks, a rank whose arms return s bytes sends (N-1) s forward; backward is an all-reduce of the inputs'
bytes. The slowest rank sets the pace: the arms differ in cost, and with four of them more than four ranks are no help.

Source: Szegedy et al., "Going deeper with convolutions" (2014), figure 2 (b).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from dtcourse.events import region
from dtcourse.model_parallel.activations import Description, header_of, read_header
from dtcourse.model_parallel.tensors import Group, copy_in, share

CHANNELS = 1  # dimension of (batch, channels, height, width)


def inception_arms(
    channels: int, one: int, three: tuple[int, int], five: tuple[int, int], pool: int
) -> list[nn.Module]:
    """The four arms of an Inception block: (B, channels, H, W) to (B, one, three[1], five[1] or pool, H, W).

    `three` and `five`: channels after the 1x1 convolution that makes them cheap, and after the 3x3 or 5x5 one.
    """
    return [
        nn.Sequential(nn.Conv2d(channels, one, 1), nn.ReLU()),
        nn.Sequential(nn.Conv2d(channels, three[0], 1), nn.ReLU(), nn.Conv2d(*three, 3, padding=1), nn.ReLU()),
        nn.Sequential(nn.Conv2d(channels, five[0], 1), nn.ReLU(), nn.Conv2d(*five, 5, padding=2), nn.ReLU()),
        nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1), nn.Conv2d(channels, pool, 1), nn.ReLU()),
    ]


class ParallelBranches(nn.Module):
    """The arms side by side, joined along the channels in their order; this rank keeps its share of them.

    Inputs: (B, C, H, W), the same on all ranks. Outputs: the same on all ranks. `arms` as on all ranks, in the same
    order; the first ranks take one more where the ranks do not divide them.

    Raises ValueError if there are more ranks than arms, or if arms return what differs in more than the channels.
    """

    def __init__(self, arms: Sequence[nn.Module], group: Group = None) -> None:
        super().__init__()
        self.group, self.count = group, len(arms)
        ours = share(len(arms), group=group)
        self.first, self.arms = ours.start, nn.ModuleList(arms[ours])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = copy_in(x, self.group)
        outputs = [self._run(number, arm, x) for number, arm in enumerate(self.arms, self.first)]
        return _Join.apply(torch.cat(outputs, CHANNELS), self.group)

    def _run(self, number: int, arm: nn.Module, x: torch.Tensor) -> torch.Tensor:
        try:
            with region("arm", arm=number):
                return arm(x)
        except Exception as problem:
            rank = dist.get_rank(self.group)
            problem.add_note(f"In arm {number} of {self.count} (rank {rank}), whose inputs were {tuple(x.shape)}.")
            raise


class _Join(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: torch.Tensor, group: Group) -> torch.Tensor:
        rank, described = dist.get_rank(group), _descriptions(own, group)
        parts = [own.contiguous() if r == rank else own.new_empty(d.shape) for r, d in enumerate(described)]
        _send_to_all(parts, group)
        ctx.first = sum(part.shape[CHANNELS] for part in parts[:rank])
        ctx.channels = own.shape[CHANNELS]
        return torch.cat(parts, CHANNELS)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient.narrow(CHANNELS, ctx.first, ctx.channels), None


def _descriptions(own: torch.Tensor, group: Group) -> list[Description]:
    """What each rank has to send: the number of channels differs, and only they may."""
    header = header_of(own)
    headers = [torch.empty_like(header) for _ in range(dist.get_world_size(group))]
    with region("control"):
        dist.all_gather(headers, header, group=group)
    described = [read_header(header) for header in headers]
    for rank, one in enumerate(described):
        if (one.dtype, _but_channels(one)) != (described[0].dtype, _but_channels(described[0])):
            raise ValueError(
                f"the arms of rank 0 return {described[0]}, those of rank {rank} {one}: "
                "only the channels (dimension 1) may differ. Look at padding and stride"
            )
    return described


def _but_channels(described: Description) -> tuple[int, ...]:
    return described.shape[:CHANNELS] + described.shape[CHANNELS + 1 :]


def _send_to_all(parts: list[torch.Tensor], group: Group) -> None:
    """Send part `rank` to all other ranks and receive theirs into the other parts, in place, all at once."""
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    others = [(rank + distance) % world for distance in range(1, world)]  # or all would send to rank 0 first
    operations = [dist.P2POp(dist.isend, parts[rank], group=group, group_peer=other) for other in others]
    operations += [dist.P2POp(dist.irecv, parts[other], group=group, group_peer=other) for other in others]
    for work in dist.batch_isend_irecv(operations) if operations else []:
        work.wait()
