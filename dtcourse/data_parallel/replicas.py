"""Replicas: every rank begins with the same model, and makes the same step. The plain way, with nothing overlapped.

    broadcast_parameters(model)
    for x, y in batches:                                      # each rank its own
        loss_of(model(x), y).backward()
        average_gradients(model.parameters(), ring_all_reduce)
        optimizer.step()
        optimizer.zero_grad()

All gradients of a dtype travel as one flat tensor when the backward pass is over: the fewest messages, and the network
is idle during the backward pass. `buckets` uses that time.

Cost: that of one all-reduce of S bytes, S being the size of the gradients and one number more for each parameter.

Source: Sergeev and Del Balso, "Horovod" (2018); Goyal et al., "Accurate, large minibatch SGD" (2017), section 3: an
all-reduce sums, so somebody has to divide.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import chain

import torch
import torch.distributed as dist
from torch import nn

from .flat import FlatGradients
from .shares import checked_share

AllReduce = Callable[..., object]  # (tensor, group=None): sums the tensor over the ranks of the group, in place


def broadcast_parameters(module: nn.Module, root: int = 0, group: dist.ProcessGroup | None = None) -> None:
    """Give every rank the parameters and buffers of the rank `root` of the group."""
    for tensor in chain(module.parameters(), module.buffers()):
        values = tensor.detach().contiguous()
        dist.broadcast(values, group_src=root, group=group)
        tensor.detach().copy_(values)


def average_gradients(
    parameters: Iterable[nn.Parameter],
    all_reduce: AllReduce,
    share: float | None = None,
    group: dist.ProcessGroup | None = None,
) -> None:
    """After the backward pass: each `parameter.grad` becomes the sum over the ranks of share * gradient.

    `share` is this rank's share of the samples (None: 1/N). A parameter that is listed twice (tied) counts once; one
    that only others have used has zeros to add; one that nobody has used is left without a gradient.
    Raises ValueError for a share that is none.
    """
    share = checked_share(share, group)
    for alike in by_kind(parameters):
        flat = FlatGradients(alike)
        flat.gather(share)
        add_up(all_reduce, flat.buffer, group)
        flat.scatter()


def add_up(all_reduce: AllReduce, tensor: torch.Tensor, group: dist.ProcessGroup | None) -> None:
    """Raises TypeError for an all-reduce that brings a result, and so may have left `tensor` as it was."""
    result = all_reduce(tensor, group=group)
    if result is not None and result is not tensor:
        raise TypeError(
            f"the all-reduce returned a {type(result).__name__}: it has to sum in place, and to be done when it returns"
        )


def by_kind(parameters: Iterable[nn.Parameter]) -> list[list[nn.Parameter]]:
    """The parameters that are trained, each once: those of one dtype and device together, in their order."""
    kinds: dict[tuple[torch.dtype, torch.device], list[nn.Parameter]] = defaultdict(list)
    for parameter in dict.fromkeys(parameters):
        if parameter.requires_grad:
            kinds[parameter.dtype, parameter.device].append(parameter)
    return list(kinds.values())
