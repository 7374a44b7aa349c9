"""A parameter that the first and the last stage share: an embedding that is also the output layer's weight.

Each of the two ranks has a copy, and a gradient of it from each batch. The gradient of the one parameter is their sum:
one exchange at the end of a batch, after which both copies have the same gradient, and so take the same step.

Source: Shoeybi et al., "Megatron-LM" (2019); Narayanan et al. (2021), section 2, where the first and the last stage
share the embedding.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn

from dtcourse.events import region

from .boundary import described, header, in_words, read_header


class Tied:
    """`parameter`, of which the rank `other` of the group has a copy. Both ranks make one at the same time.

    Raises ValueError if the copies differ: no sum of gradients would make them one parameter.
    """

    def __init__(self, parameter: nn.Parameter, other: int, group: dist.ProcessGroup) -> None:
        self._parameter, self._other, self._group = parameter, other, group
        with region("control"):
            ours = described([parameter])
            theirs = read_header(self._exchanged(header(ours).to(parameter.device)))
            if ours != theirs:
                raise ValueError(f"tied: here it is {in_words(ours)}, on rank {other} of the group {in_words(theirs)}")
            if not torch.equal(self._exchanged(parameter.detach()), parameter):
                raise ValueError(
                    f"tied: the copies here and on rank {other} of the group hold different values: let both begin "
                    "with the same (the same seed, or a broadcast)"
                )

    @contextmanager
    def summed(self) -> Iterator[None]:
        """Around the backwards of a batch: adds the gradients of the batch on both ranks to `parameter.grad`."""
        before, self._parameter.grad = self._parameter.grad, None  # of earlier batches: summed already
        yield
        own = self._parameter.grad
        own = torch.zeros_like(self._parameter) if own is None else own
        total = own + self._exchanged(own)
        self._parameter.grad = total if before is None else before + total

    def _exchanged(self, tensor: torch.Tensor) -> torch.Tensor:
        """What the other rank gives for `tensor`."""
        theirs = torch.empty_like(tensor, memory_format=torch.contiguous_format)
        ends = (dist.isend, tensor.contiguous()), (dist.irecv, theirs)
        operations = [dist.P2POp(do, one, group=self._group, group_peer=self._other) for do, one in ends]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        return theirs
