"""ZeRO 1 and 2: all ranks have all parameters, each rank the optimizer's state of its share of them.

    sharded = Sharded(model, partial(torch.optim.Adam, lr=1e-3), stage=2)      # the same model on all ranks
    for x, y in batches:                                                       # each rank its own
        with sharded.step(share):                                              # None: all shares are equal, 1/N
            cross_entropy(model(x), y).backward()                              # the mean over the own samples
                                                                               # here all ranks have the new weights
A step, where every rank owns a chunk of each unit, a layer for instance (see `flat_parameters`):

    backward          a rank's own gradients come in, times its share, the last unit's first
    reduce-scatter    each rank gets the sums of its chunks: stage 1 after the backward; stage 2 as soon as a unit's
                      gradients are complete, and then frees those of the other chunks
    update            each rank steps its own chunks; momentum and the like are nowhere else
    all-gather        each rank gets the other chunks of the new weights

Cost: a reduce-scatter and an all-gather, so what an all-reduce costs: by ring 2 (N-1)/N S bytes a rank, exactly
2 S - c[(j+1) mod N] - c[(j+2) mod N] for rank j, with chunks of c[k] bytes, added over the units. Memory: see `memory`.

Earlier backwards, outside of the block, only accumulate (whole gradients, on each rank). What nobody has used in a step
is not stepped, so not decayed either: a flag per parameter says so, and goes along as control traffic. A rank without
samples: `with sharded.step(share=0): pass`.

Source: Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models" (2020), sections 5
and 7.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from dtcourse.collectives.ring import ring_all_gather, ring_reduce_scatter
from dtcourse.data_parallel.agreement import check_same_parameters
from dtcourse.data_parallel.elementwise import MakeOptimizer, made, refuse_unless_elementwise
from dtcourse.data_parallel.flat_parameters import Exchange, FlatParameters
from dtcourse.data_parallel.sharded_state import take_over, whole_state
from dtcourse.data_parallel.shares import checked_share
from dtcourse.data_parallel.units import Unit, units_of
from dtcourse.events import region


class Sharded:
    """`module` with the state of its optimizer over the ranks of `group`, and in stage 2 the gradients too.

    make_optimizer    makes an elementwise optimizer of a list of parameters (this rank's pieces of them, flat)
    units             the parts of the module that are exchanged one at a time; its children, if None
    reduce_scatter    sums in place and completes chunk (j+1) mod N on rank j; all_gather begins there

    Raises ValueError if the ranks hold different models, if this one is sharded already or has nothing to train, if
    units overlap, or if the optimizer is not elementwise; TypeError if `make_optimizer` makes none.
    """

    stages: tuple[int, ...] = (1, 2)

    def __init__(
        self,
        module: nn.Module,
        make_optimizer: MakeOptimizer,
        *,
        stage: int = 1,
        units: Sequence[nn.Module] | None = None,
        reduce_scatter: Exchange = ring_reduce_scatter,
        all_gather: Exchange = ring_all_gather,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        if stage not in self.stages:
            raise ValueError(f"stage={stage}: {type(self).__name__} does {' and '.join(map(str, self.stages))}")
        if not any(parameter.requires_grad for parameter in module.parameters()):
            raise ValueError("the module has no parameters to train")
        refuse_unless_elementwise(make_optimizer)
        check_same_parameters(module.named_parameters(), group)
        self.module, self.stage, self._group = module, stage, group
        self._reduce_scatter, self._all_gather = reduce_scatter, all_gather
        self.units = units_of(module, units, group, frozen_too=stage == 3)
        self.flats = [flat for unit in self.units for flat in unit.flats]
        self._trained = [flat for flat in self.flats if flat.trained]
        self._waiting: list[FlatParameters] = []  # not exchanged yet; the last one is next
        self._share: float | None = None  # None outside of a step
        self._hold()
        self.optimizer = made(make_optimizer, [piece for flat in self._trained for piece in flat.pieces.values()])
        for unit in self.units:
            for flat in unit.flats:
                for name, parameter in flat.parameters.items() if flat.trained else ():
                    parameter.register_post_accumulate_grad_hook(partial(self._accumulated, unit, flat, name))

    @contextmanager
    def step(self, share: float | None = None) -> Iterator[None]:
        """Around the backward of a step: leaving the block exchanges what is left, and updates the weights.

        `share` is this rank's share of all samples of the step; the shares of all ranks sum to 1. Raises ValueError
        for one that is none.
        """
        if self._share is not None:
            raise RuntimeError("this step() lies inside another one")
        self._refuse_thawed()
        self._share = checked_share(share, self._group)
        self._waiting = list(self._trained)
        try:
            yield
            self._exchange_the_rest()
            self._update(self._used_by_any())
        finally:  # a step that has failed leaves nothing behind
            self._share = None
            self._let_go()

    # -- the four parts of a step -------------------------------------------------------------------------------

    def _hold(self) -> None:
        """What a rank holds between the steps: all parameters."""

    def _accumulated(self, unit: Unit, flat: FlatParameters, name: str, parameter: nn.Parameter) -> None:
        """Autograd has computed the gradient of a parameter."""
        if self._share is None:
            return
        flat.collect(name, self._share)
        # In the order of the units, the last first: what comes early waits for its predecessors, as on all ranks.
        while self.stage == 2 and self._waiting and not self._waiting[-1].missing:
            self._waiting.pop().reduce(self._reduce_scatter)

    def _exchange_the_rest(self) -> None:
        """Reduce what waits, also what nobody here has used: other ranks may have, and have begun to exchange it."""
        while self._waiting:
            flat = self._waiting.pop()
            for name in [n for n in flat.missing if flat.parameters[n].grad is not None]:  # from an earlier backward
                flat.collect(name, self._share)
            flat.reduce(self._reduce_scatter)

    def _used_by_any(self) -> set[str]:
        """The names of the parameters that have a gradient on some rank."""
        names = [name for flat in self._trained for name in flat.parameters]
        used = torch.tensor([name in flat.used for flat in self._trained for name in flat.parameters])
        flags = used.to(torch.uint8).to(self._trained[0].shard.device)
        with region("control"):
            dist.all_reduce(flags, dist.ReduceOp.MAX, self._group)
        return {name for name, flag in zip(names, flags.tolist(), strict=True) if flag}

    def _update(self, used: set[str]) -> None:
        for flat in self._trained:
            for name in used & flat.parameters.keys():
                flat.pieces[name].grad = flat.reduced[flat.part(name)]
        with region("update"):
            self.optimizer.step()  # passes over what has no gradient, as always: no decay, no momentum
        self.optimizer.zero_grad()
        self._let_go()
        for flat in self._trained:
            if used & flat.parameters.keys():
                self._publish(flat)

    def _publish(self, flat: FlatParameters) -> None:
        """Give the new weights to all ranks."""
        with region("all-gather", unit=flat.name):
            self._all_gather(flat.row, self._group)

    def _let_go(self) -> None:
        self.module.zero_grad()
        for flat in self._trained:
            flat.forget()

    def _refuse_thawed(self) -> None:
        trained = {parameter for flat in self._trained for parameter in flat.parameters.values()}
        for name, parameter in self.module.named_parameters():
            if parameter.requires_grad and parameter not in trained:
                raise RuntimeError(f"{name} was frozen when it was sharded, and no rank has a place for its gradient")

    # -- what it holds ------------------------------------------------------------------------------------------

    def tensors(self) -> dict[str, list[torch.Tensor]]:
        """What this rank holds, by kind, for `memory.Memory`."""
        flats = self.flats
        rows = [tensor for flat in flats for tensor in (flat.row, flat.shard)]
        gradients = [parameter.grad for parameter in self.module.parameters()]
        gradients += [tensor for flat in flats for tensor in (flat.gradient, flat.reduced)]
        states = [value for state in self.optimizer.state.values() for value in state.values()]
        return {
            "parameters": [*rows, *self.module.parameters()],
            "gradients": [gradient for gradient in gradients if gradient is not None],
            "optimizer state": [value for value in states if isinstance(value, torch.Tensor)],
        }

    def state_dict(self) -> dict[str, Any]:
        """All of it, whole, on every rank, which all call it: {"module": ..., "optimizer": {name: its state}}.

        "module" is what `module.state_dict()` is without sharding. It needs the memory that sharding saves.
        """
        return whole_state(self.module, self.optimizer, self.flats, self._all_gather)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned, in a world of any size. All ranks call it."""
        take_over(state, self.module, self.optimizer, self.flats)
        for flat in self.flats:
            self._publish(flat)
