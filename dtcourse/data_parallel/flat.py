"""The gradients of some parameters as one flat tensor: what an all-reduce is given instead of many small ones.

    flat = FlatGradients(parameters)
    flat.gather(share)                # each parameter.grad, times this rank's share of the samples
    ring_all_reduce(flat.buffer)      # the sum over the ranks: the average
    flat.scatter()                    # each parameter.grad is its part of the sum

Behind the gradients lies one number for each parameter: 1 where it was used here, else 0. It is summed with them; so
afterwards every rank knows which parameters nobody has used. Those have no gradient: a zero would not do, since with
momentum or weight decay an optimizer moves a parameter whose gradient is zero, and leaves alone one that has none.

    buffer   | gradient of the first | of the second | ... | of the last | used: one number each |

Cost: elements + parameters numbers for an all-reduce; one copy of each gradient, since in the end it is a view of the
buffer. (DistributedDataParallel calls that gradient_as_bucket_view.)

Source: Li et al., "PyTorch Distributed" (2020), section 4.2, where a bitmap of the used parameters has an all-reduce
of its own.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn


class FlatGradients:
    """Of `parameters`, all of one dtype on one device. `buffer`: one dimension, the same length on all ranks."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.parameters = list(parameters)
        first, elements = self.parameters[0], sum(p.numel() for p in self.parameters)
        self.buffer = torch.zeros(elements + len(self.parameters), dtype=first.dtype, device=first.device)
        *parts, self._used = self.buffer.split([*(p.numel() for p in self.parameters), len(self.parameters)])
        self._views = {p: part.view_as(p) for p, part in zip(self.parameters, parts, strict=True)}
        self._place = {p: place for place, p in enumerate(self.parameters)}

    def gather(self, share: float) -> None:
        """Put in all gradients, times `share`."""
        for parameter in self.parameters:
            self.put(parameter, share)

    def put(self, parameter: nn.Parameter, share: float) -> None:
        """Put in one gradient, times `share`; from then on it lies in the buffer. A share of 0 uses nothing.

        Raises TypeError for a gradient that is not dense.
        """
        view, gradient = self._views[parameter], parameter.grad
        used = gradient is not None and share != 0
        self._used[self._place[parameter]] = float(used)
        if not used:
            view.zero_()  # and not times 0: of infinity that is no number
            return
        if gradient.layout is not torch.strided:
            raise TypeError(
                f"a gradient of layout {gradient.layout} has no place in a bucket: sparse=False makes it dense"
            )
        torch.mul(gradient, share, out=view)
        parameter.grad = view

    def scatter(self) -> None:
        """After the sum: each gradient is its part of the buffer, until the next `put`; None if nobody had one."""
        for parameter, users in zip(self.parameters, self._used.tolist(), strict=True):
            parameter.grad = self._views[parameter] if users else None
