"""The exchange of gradients that get ready in any order: tell, agree, fuse, all-reduce; in a background thread.

One cycle:

    wait      a moment, for more gradients to become ready
    round     show the other ranks what is ready here, see what is ready everywhere     (negotiation)
    pack      that, times this rank's share, into as few buffers as the limit allows    (fusion)
    sum       each buffer over all ranks, and put the sums where the gradients were

A cycle begins when a gradient has become ready. A rank whose gradients have all been shown goes on, round after round,
until all are exchanged. So every rank takes part in the same rounds.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import nn

from dtcourse.events import region

from .background import Background, Task
from .fusion import fused
from .negotiation import Negotiation, State
from .replicas import AllReduce, add_up
from .shares import checked_share


class Exchange:
    """Of the gradients of `parameters`, step by step, in buffers of at most `limit` bytes, every `cycle` seconds.

    share    what this rank's gradients are multiplied by; None: 1 / number of ranks
    """

    def __init__(
        self,
        names: Sequence[str],
        parameters: Sequence[nn.Parameter],
        all_reduce: AllReduce,
        limit: int,
        cycle: float,
        group: dist.ProcessGroup,
    ) -> None:
        self.share: float | None = None
        self._names, self._parameters = names, parameters
        self._places = {parameter: place for place, parameter in enumerate(parameters)}
        self._all_reduce, self._limit, self._cycle, self._group = all_reduce, limit, cycle, group
        self._negotiation = Negotiation(names, parameters[0].device, group)
        self._background = Background()
        self._begin()

    def _begin(self) -> None:
        self._here = [State.NOT_YET] * len(self._parameters)
        self._shown = list(self._here)
        self._exchanged: set[int] = set()
        self._buffers = 0
        self._computed: dict[nn.Parameter, torch.cuda.Event] = {}
        self._negotiation.begin()

    @property
    def begun(self) -> bool:
        """Whether gradients of this step may be on their way."""
        return any(self._here)

    def ready(self, parameters: Iterable[nn.Parameter]) -> Task:
        """From now on, and until `finish`, the gradients of these parameters belong to the background thread.

        Returns what that thread will have done when these are shown to the other ranks.
        """
        for parameter in parameters:
            place = self._places[parameter]
            check_gradient(self._names[place], parameter.grad)
            if parameter.is_cuda:
                self._computed[parameter] = torch.cuda.current_stream(parameter.device).record_event()
            used = parameter.grad is not None and self.share != 0
            self._here[place] = State.GRADIENT if used else State.NOTHING
        return self._background.submit(self._one_cycle)

    def finish(self) -> None:
        """Wait until all gradients are exchanged. What has not been `ready` is so now, with a gradient or without."""
        try:
            self.ready([p for p, state in zip(self._parameters, self._here, strict=True) if not state]).wait()
        finally:
            self._begin()

    # -- in the background thread --------------------------------------------------------------------------------------

    @torch.no_grad()
    def _one_cycle(self) -> None:
        if self._here == self._shown:
            return  # an earlier cycle has shown it
        time.sleep(self._cycle)
        nothing_left = False
        while not nothing_left:
            self._shown = list(self._here)
            ready, used = self._negotiation.round(self._shown)
            for place in ready - used - self._exchanged:
                self._parameters[place].grad = None
            for parameters in fused([self._parameters[p] for p in sorted(used - self._exchanged)], self._limit):
                with region("all-reduce", bucket=self._buffers):
                    self._sum(parameters)
                self._buffers += 1
            self._exchanged |= ready
            nothing_left = not all(self._shown) or len(self._exchanged) == len(self._parameters)

    def _sum(self, parameters: list[nn.Parameter]) -> None:
        """Each gradient becomes the sum over the ranks of share * gradient, and a part of the buffer."""
        share = checked_share(self.share, self._group)
        sizes = [parameter.numel() for parameter in parameters]
        buffer = parameters[0].new_zeros(sum(sizes))
        parts = [part.view_as(one) for part, one in zip(buffer.split(sizes), parameters, strict=True)]
        for parameter, part in zip(parameters, parts, strict=True):
            gradient = parameter.grad
            if gradient is not None and share:  # and not times 0: of infinity that is no number
                if gradient.is_cuda:
                    self._computed[parameter].wait()
                    gradient.record_stream(torch.cuda.current_stream())  # its memory is not for others until then
                torch.mul(gradient, share, out=part)
        add_up(self._all_reduce, buffer, self._group)
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.grad = part


def check_gradient(name: str, gradient: torch.Tensor | None) -> None:
    """Raises TypeError for one that cannot be packed, ValueError for one that another backward will need."""
    if gradient is None:
        return
    if gradient.layout != torch.strided:
        raise TypeError(f"the gradient of {name} is sparse, and a buffer is dense: build the layer with sparse=False")
    if gradient.requires_grad:
        raise ValueError(
            f"the gradient of {name} has a graph of its own (create_graph=True), which the sum over the ranks would "
            "break: take second derivatives of the loss before its backward()"
        )
