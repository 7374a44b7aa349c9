"""What `Cluster(..., strict=True)` refuses on the CPU, because NCCL would refuse it or hang.

What runs here with it also runs on GPUs.
"""

from __future__ import annotations

import torch

from dtcourse.events import ANY_RANK

CROSSING = (
    "rank {other} has begun a {what} of its own, and so both ends {what} first. With NCCL each waits for the other, "
    "for ever: put sends and receives into one dist.batch_isend_irecv"
)


class Refused(ValueError):
    """NCCL would not do this."""


def check_message(tensors: list[torch.Tensor], peer: int, tag: int, device: torch.device) -> None:
    """Raise Refused for a message that NCCL cannot carry."""
    if peer == ANY_RANK:
        raise Refused("NCCL cannot receive from any rank: name the sender with src=")
    if tag:
        raise Refused(
            f"NCCL has no tags (here: {tag}): messages of one pair arrive in the order in which they were sent"
        )
    check_tensors(tensors, device)


def check_tensors(tensors: list[torch.Tensor], device: torch.device) -> None:
    """Raise Refused for a tensor that is not on the rank's device, or whose elements do not lie one after the other."""
    for tensor in tensors:
        if not (tensor.is_contiguous() or tensor.is_contiguous(memory_format=tensor_format(tensor))):
            shape = f"shape {tuple(tensor.shape)} and strides {tensor.stride()}"
            raise Refused(f"NCCL moves contiguous tensors, and this one, of {shape}, is none: send tensor.contiguous()")
        if tensor.device.type != device.type:
            raise Refused(f"NCCL moves tensors of the rank's own device, {device}, and this one is on {tensor.device}")


def tensor_format(tensor: torch.Tensor) -> torch.memory_format:
    """The other format that counts as contiguous: of pictures, channels last."""
    return torch.channels_last if tensor.dim() == 4 else torch.contiguous_format
