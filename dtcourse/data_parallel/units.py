"""The parts of a module that are exchanged one at a time: which parameter belongs to which.

    model.embedding   model.blocks.0   model.blocks.1   model.head        each a unit
    what belongs to none of them, and what several share                  a unit of its own: the module itself

Source: Zhao et al., "PyTorch FSDP" (2023), section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch.distributed as dist
from torch import nn

from dtcourse.data_parallel.flat_parameters import FlatParameters


@dataclass(eq=False)
class Unit:
    """A part of the module, and its own parameters, in one row for each dtype, and each of trained and frozen."""

    name: str
    module: nn.Module
    flats: list[FlatParameters]
    awaited: int = 0  # inputs of its forward whose gradient has yet to come
    computed_again: bool = False  # its forward is one that a backward has asked for

    @property
    def whole(self) -> bool:
        return all(flat.whole for flat in self.flats)


def units_of(
    module: nn.Module, parts: Sequence[nn.Module] | None, group: dist.ProcessGroup | None, frozen_too: bool
) -> list[Unit]:
    """The units in the order in which the module names them, the module itself first. None: its children."""
    parts = _children(module) if parts is None else list(parts)
    names = {part: name for name, part in module.named_modules()}
    _refuse(parts, names)
    parts.sort(key=list(names).index)
    holders = {p: [part for part in parts if p in set(part.parameters())] for p in module.parameters()}
    owned: dict[nn.Module, dict[str, nn.Parameter]] = {module: {}, **{part: {} for part in parts}}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad or frozen_too:
            unit = holders[parameter][0] if len(holders[parameter]) == 1 else module
            owned[unit][name] = parameter
    return [
        Unit(names[part] or "the module itself", part, _rows(names[part] or "the module itself", parameters, group))
        for part, parameters in owned.items()
        if parameters
    ]


def can_be_called(module: nn.Module) -> bool:
    """Not so a ModuleList: what lies in it is called."""
    return type(module).forward is not nn.Module.forward


def _children(module: nn.Module) -> list[nn.Module]:
    return [one for child in module.children() for one in ([child] if can_be_called(child) else _children(child))]


def _rows(unit: str, parameters: dict[str, nn.Parameter], group: dist.ProcessGroup | None) -> list[FlatParameters]:
    alike: dict[tuple, dict[str, nn.Parameter]] = {}
    for name, parameter in parameters.items():
        alike.setdefault((parameter.dtype, parameter.device, parameter.requires_grad), {})[name] = parameter
    return [FlatParameters(unit, group_of, group) for group_of in alike.values()]


def _refuse(parts: list[nn.Module], names: dict[nn.Module, str]) -> None:
    for part in parts:
        if part not in names:
            raise ValueError(f"units: a {type(part).__name__} that is no part of the module")
        inner = [one for one in parts if one is not part and one in set(part.modules())]
        if inner:
            raise ValueError(f"units: {names[inner[0]]} lies inside {names[part]}: no parameter can belong to both")
    if len(set(parts)) < len(parts):
        raise ValueError("units: one of them is named twice")
