"""An optimizer that averages the gradients of all ranks before each step, in Horovod's manner.

    broadcast_parameters(model)
    optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    for x, y in batches:
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()     # gradients travel as they become ready
        optimizer.step()                          # waits for the rest, and updates

When a gradient is ready, the rank tells the others. Every cycle, in a background thread: what is ready on all ranks is
packed into buffers, all-reduced, and unpacked (`exchange`). So gradients may become ready in another order on each rank
and in each step, and nobody says in advance which travel together. The buckets of PyTorch are laid out once.

Each rank's loss is the mean over its own samples. Its gradients are multiplied by `optimizer.share`, and summed. Set it
before the backward, if ranks have different numbers of samples.

To see the averaged gradients before the step, for instance to clip them:

        optimizer.synchronize()
        clip_grad_norm_(model.parameters(), 1.0)
        with optimizer.skip_synchronize():
            optimizer.step()

Source: Sergeev and Del Balso, "Horovod: fast and easy distributed deep learning in TensorFlow" (2018); Horovod
(horovod/torch/optimizer.py).
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from dtcourse.collectives.ring import ring_all_reduce

from .agreement import check_same_parameters
from .background import group_of_its_own
from .exchange import Exchange
from .gradient_hooks import tell, untell
from .replicas import AllReduce
from .shares import checked_share

MIB = 1 << 20


class DistributedOptimizer(torch.optim.Optimizer):
    """Does what `optimizer` does, with gradients that are averaged over the ranks of `group`.

    Every rank makes one at the same time, for models that begin with the same parameters (`broadcast_parameters`).

    named_parameters          (name, parameter) of all that `optimizer` updates: by the names ranks know what is whose
    all_reduce                `all_reduce(tensor, group=group)` sums a flat tensor over the ranks, in place
    fusion_mib, cycle_ms      how much may travel together, and how long to wait for more
    backward_passes_per_step  so many are added up before the exchange (added, as autograd does, not averaged)

    Raises ValueError if names are missing or given twice, or if the parameters or these numbers differ from rank to
    rank; TypeError for parameters without names.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        named_parameters: Iterable[tuple[str, nn.Parameter]],
        all_reduce: AllReduce = ring_all_reduce,
        *,
        fusion_mib: float = 128,
        cycle_ms: float = 1,
        backward_passes_per_step: int = 1,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        if not (fusion_mib >= 0 and cycle_ms >= 0 and backward_passes_per_step >= 1):
            raise ValueError(f"{fusion_mib=}, {cycle_ms=}, {backward_passes_per_step=}: at least 0, 0 and 1")
        self.optimizer = optimizer
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self._share_state()
        named = named_of(optimizer, named_parameters)
        check_same_parameters(named, group, fusion_mib=fusion_mib, backward_passes_per_step=backward_passes_per_step)
        limit, cycle, own = int(fusion_mib * MIB), cycle_ms / 1000, group_of_its_own(group)
        self._exchange = Exchange(*zip(*named, strict=True), all_reduce, limit, cycle, own)
        self._names = {parameter: name for name, parameter in named}
        self._passes_per_step = backward_passes_per_step
        self._passes: Counter[nn.Parameter] = Counter()  # backwards that have reached it since the last exchange
        self._should_synchronize, self._synchronized = True, False
        trained = [parameter for parameter in self._names if parameter.requires_grad]
        weakref.finalize(self, untell, tell(partial(_notice, weakref.ref(self)), trained))

    @property
    def share(self) -> float | None:
        """This rank's share of the samples of a step; None: all ranks have as many."""
        return self._exchange.share

    @share.setter
    def share(self, share: float | None) -> None:
        if self._exchange.begun:
            raise RuntimeError("gradients of this step are on their way: set optimizer.share before the backward")
        if share is not None:
            checked_share(share)
        self._exchange.share = share

    def synchronize(self) -> None:
        """Wait until the gradients of all ranks are averaged. A parameter that no rank has used keeps grad None."""
        self._passes.clear()
        self._exchange.finish()
        self._synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Around a `step` whose gradients are synchronized already."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def step(self, closure: None = None) -> None:
        """Synchronize, and update the parameters.

        Raises RuntimeError if the gradients are synchronized already, or in `skip_synchronize` if they are not;
        ValueError for a closure.
        """
        if closure is not None:
            raise ValueError(
                "step(closure) computes gradients that nobody would average: call backward() before step()"
            )
        if self._should_synchronize:
            if self._synchronized and not self._passes:
                raise RuntimeError(
                    "the gradients are averaged already: after synchronize(), call step() inside of "
                    "`with optimizer.skip_synchronize():`"
                )
            self.synchronize()
        elif self._passes or not self._synchronized:
            raise RuntimeError("inside of skip_synchronize(), step() needs synchronize() before: nothing is averaged")
        self._synchronized = False
        self.optimizer.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Raises RuntimeError between backward() and step() or synchronize()."""
        if self._passes:
            raise RuntimeError(
                "zero_grad() after backward() and before step() or synchronize(): the gradients are on their way to "
                "the other ranks. Call it before backward()"
            )
        self.optimizer.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state_dict)
        self._share_state()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if hasattr(self, "_exchange"):
            raise RuntimeError("a DistributedOptimizer has all of its parameters from the beginning: make another one")
        super().add_param_group(param_group)

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("a DistributedOptimizer holds a communication thread, and has no copy: copy its state_dict()")

    # -- inside ----------------------------------------------------------------------------------------------------

    def _share_state(self) -> None:
        """Learning rates that somebody sets here, such as a scheduler, are those of the wrapped optimizer."""
        self.param_groups, self.state = self.optimizer.param_groups, self.optimizer.state

    def _gradient_computed(self, parameter: nn.Parameter) -> None:
        self._passes[parameter] += 1
        if (passes := self._passes[parameter]) > self._passes_per_step:
            raise RuntimeError(
                f"rank {dist.get_rank()}: backward {passes} of {self._names[parameter]} since the last step() "
                f"or synchronize(), and backward_passes_per_step is {self._passes_per_step}: its gradient is on its "
                "way to the other ranks. Call step() in between, or raise backward_passes_per_step"
            )
        if passes == self._passes_per_step:
            self._exchange.ready([parameter])


def _notice(optimizer: weakref.ref[DistributedOptimizer], parameter: nn.Parameter) -> None:
    """Hangs at the parameter, and keeps nothing alive."""
    if (alive := optimizer()) is not None:
        alive._gradient_computed(parameter)


def named_of(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, nn.Parameter]]
) -> list[tuple[str, nn.Parameter]]:
    """What `optimizer` updates, sorted by name. Raises ValueError if a name is missing or there twice."""
    named = list(named_parameters)
    if any(isinstance(pair, torch.Tensor) for pair in named):
        raise TypeError("named_parameters has parameters without names: pass model.named_parameters()")
    names = {parameter: name for name, parameter in reversed(named)}
    updated = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if twice := sorted(name for name, count in Counter(name for name, _ in named).items() if count > 1):
        raise ValueError(f"named_parameters has two parameters of one name: {', '.join(twice)}")
    if nameless := [tuple(parameter.shape) for parameter in updated if parameter not in names]:
        raise ValueError(
            f"named_parameters names no parameter of shape {nameless[0]} that the optimizer updates "
            f"({len(nameless)} without a name): pass model.named_parameters()"
        )
    return sorted(((names[parameter], parameter) for parameter in updated), key=lambda pair: pair[0])
