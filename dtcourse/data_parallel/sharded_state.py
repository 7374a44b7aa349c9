"""The state of a sharded training made whole, to save and to compare, and cut again, perhaps for other ranks.

    {"module": as module.state_dict(), "optimizer": {"0.weight": {"step": 20, "exp_avg": (as the weight), ...}, ...}}

What the optimizer keeps of a parameter is a tensor of its shape, or a number, which is the same on all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import nn

from dtcourse.data_parallel.flat_parameters import Exchange, FlatParameters


def whole_state(
    module: nn.Module, optimizer: torch.optim.Optimizer, flats: Sequence[FlatParameters], all_gather: Exchange
) -> dict[str, Any]:
    """On every rank; all of them call it."""
    wholes: dict[nn.Parameter, torch.Tensor] = {}
    states: dict[str, dict[str, Any]] = {}
    for flat in flats:
        values = flat.joined(flat.pieces, all_gather)
        wholes |= {flat.parameters[name]: value for name, value in values.items()}
        states |= _optimizer_state(optimizer, flat, all_gather)
    entries = module.state_dict(keep_vars=True).items()
    values = {key: wholes[v] if v in wholes else v.detach().clone() for key, v in entries}
    return {"module": values, "optimizer": states}


def _optimizer_state(
    optimizer: torch.optim.Optimizer, flat: FlatParameters, all_gather: Exchange
) -> dict[str, dict[str, Any]]:
    stepped = {name: optimizer.state[piece] for name, piece in flat.pieces.items() if piece in optimizer.state}
    whole = {name: deepcopy(state) for name, state in stepped.items()}
    for key in sorted({key for state in stepped.values() for key in state}):
        pieces = {n: s[key] for n, s in stepped.items() if isinstance(s.get(key), torch.Tensor) and s[key].dim()}
        if pieces:  # the others are numbers
            for name, value in flat.joined(pieces, all_gather).items():
                whole[name][key] = value
    return whole


def take_over(
    state: dict[str, Any], module: nn.Module, optimizer: torch.optim.Optimizer, flats: Sequence[FlatParameters]
) -> None:
    """Put this rank's part of what `whole_state` returned into its pieces, and the rest of the module where it was."""
    places = {p: (flat, name) for flat in flats for name, p in flat.parameters.items()}
    optimizer.state.clear()
    for key, tensor in module.state_dict(keep_vars=True).items():
        if tensor not in places:  # a buffer, or frozen
            tensor.detach().copy_(state["module"][key])
            continue
        flat, name = places[tensor]
        piece = flat.pieces[name]
        piece.detach().copy_(flat.piece_of(name, state["module"][key]))
        for key, value in state["optimizer"].get(name, {}).items():
            # As in torch's own load_state_dict, "step" is a number, whatever the parameter's shape.
            whole = key != "step" and getattr(value, "shape", None) == tensor.shape
            optimizer.state[piece][key] = flat.piece_of(name, value).clone() if whole else deepcopy(value)
