"""ZeRO 3: the parameters, too, are over the ranks; a rank has a unit whole only while it computes with it.

    sharded = FullySharded(model, partial(torch.optim.Adam, lr=1e-3))       # used as `sharded.Sharded` is

One step of a model of units 0, 1, 2: G gathers a unit, x frees it, R is the reduce-scatter of its gradients

    forward     G0 f0 x0   G1 f1 x1   G2 f2 x2
    backward    G2 b2 x2 R2   G1 b1 x1 R1   G0 b0 x0 R0
    update      each rank its own chunks; nothing to send

Cost: two all-gathers and a reduce-scatter of each unit: by ring 3 (N-1)/N S bytes a rank, exactly
3 S - c[(j+1) mod N] - 2 c[(j+2) mod N] for rank j. All of it lies in the way of the computation: nothing is gathered
ahead of time here, as FSDP does it.

Each rank calls the same units in the same order, and backs through them: a rank without samples computes with any, and
`step(share=0)`; what only some ranks call is to be no unit (it then comes with the module itself). Outside of its
forward and backward a parameter is NaN; `state_dict()` has the values.

Source: Rajbhandari et al., "ZeRO" (2020), sections 5 and 7; units that come and go as in Zhao et al., "PyTorch FSDP"
(2023), section 3.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map_only

from dtcourse.data_parallel.flat_parameters import FlatParameters
from dtcourse.data_parallel.sharded import Sharded
from dtcourse.data_parallel.units import Unit, can_be_called


class FullySharded(Sharded):
    """`module` over the ranks: of each parameter a rank keeps a piece, and the gradient and the state of that piece.

    What it is given is told at `Sharded`. A unit is gathered when its module is called, and its parameters are for its
    own forward alone. Raises ValueError also if a unit cannot be called, as a ModuleList.
    """

    stages = (3,)

    def __init__(self, *arguments: Any, stage: int = 3, **options: Any) -> None:
        super().__init__(*arguments, stage=stage, **options)
        for unit in self.units:
            if not can_be_called(unit.module):
                kind = type(unit.module).__name__
                raise ValueError(f"{unit.name}, a {kind}, is never called: make units of what is called in it")
            unit.module.register_forward_pre_hook(partial(self._before_forward, unit), with_kwargs=True)
            unit.module.register_forward_hook(partial(self._after_forward, unit), always_call=True)

    # -- a unit comes and goes ----------------------------------------------------------------------------------

    def _before_forward(self, unit: Unit, module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        unit.computed_again = unit.whole
        if unit.whole:  # its backward computes the forward again (activation checkpointing)
            return args, kwargs
        self._gather(unit)

        def watched(tensor: torch.Tensor) -> torch.Tensor:
            if not (torch.is_grad_enabled() and tensor.requires_grad):
                return tensor
            tensor = tensor.view_as(tensor)  # whose gradient is complete when this unit is done, whoever else has it
            tensor.register_hook(lambda _: self._input_done(unit))
            unit.awaited += 1
            return tensor

        return tree_map_only(torch.Tensor, watched, (args, kwargs))

    def _after_forward(self, unit: Unit, module: nn.Module, args: tuple, outputs: Any) -> None:
        if unit.computed_again:
            return
        self._free(unit)
        for output in tree_leaves(outputs):
            if isinstance(output, torch.Tensor) and output.requires_grad:
                output.register_hook(lambda _: self._gather(unit))  # before its backward

    def _input_done(self, unit: Unit) -> None:
        unit.awaited -= 1
        if not unit.awaited:
            self._backward_done(unit)

    def _accumulated(self, unit: Unit, flat: FlatParameters, name: str, parameter: nn.Parameter) -> None:
        if self._share is not None:
            flat.collect(name, self._share)

    def _backward_done(self, unit: Unit) -> None:
        """On all ranks at the same point of their backward, whatever each of them has used of the unit."""
        self._free(unit)
        for flat in [flat for flat in unit.flats if flat in self._waiting]:
            self._waiting.remove(flat)
            flat.reduce(self._reduce_scatter)

    def _gather(self, unit: Unit) -> None:
        for flat in unit.flats:
            if not flat.whole:
                flat.gather(self._all_gather)

    def _free(self, unit: Unit) -> None:
        for flat in unit.flats:
            if flat.whole:
                flat.free()

    # -- what differs in a step ---------------------------------------------------------------------------------

    def _hold(self) -> None:
        """Only the own chunk."""
        for flat in self.flats:
            flat.keep(flat.shard.clone())
            flat.free()

    def _exchange_the_rest(self) -> None:
        self._free_all()  # a unit whose inputs need no gradient (the first) says nothing when its backward is over
        super()._exchange_the_rest()

    def _let_go(self) -> None:
        self._free_all()
        super()._let_go()

    def _free_all(self) -> None:
        for unit in self.units:
            unit.awaited = 0
            self._free(unit)

    def _publish(self, flat: FlatParameters) -> None:
        """The others gather it when they need it."""
