"""A stack of LSTM layers as stages: a layer needs of the one below it the sequence of hidden states, and no more.

    layers = unstack(nn.LSTM(32, 64, num_layers=4))
    stage = Stage(own_layers(layers, [2, 1, 1]))

The translation system of Google kept each layer of an 8-layer encoder and decoder on a GPU of its own. The cell states
stay where they are made; a boundary carries (time, batch, hidden) values forward and as many gradients back.

Source: Wu et al., "Google's neural machine translation system" (2016), section 3.
"""

from __future__ import annotations

import re

import torch
from torch import nn


class LSTMLayer(nn.LSTM):
    """One layer of a stack: (time, batch, features) to (time, batch, hidden), or batch first, as its stack had it."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return super().forward(inputs)[0]


def unstack(lstm: nn.LSTM) -> list[LSTMLayer]:
    """The layers of a stack, with copies of its weights: one after the other they compute what it computes.

    Raises ValueError if it drops out between its layers, which would need the same random numbers on other ranks.
    """
    if lstm.dropout:
        raise ValueError(f"nn.LSTM(dropout={lstm.dropout}) drops out between its layers: put nn.Dropout there instead")
    return [_layer(lstm, number) for number in range(lstm.num_layers)]


def _layer(lstm: nn.LSTM, number: int) -> LSTMLayer:
    end = re.compile(rf"_l{number}(?=_|$)")  # weight_ih_l1, weight_ih_l1_reverse, and not weight_ih_l10
    weights = {end.sub("_l0", name): value for name, value in lstm.state_dict().items() if end.search(name)}
    like = weights["weight_ih_l0"]
    layer = LSTMLayer(
        like.shape[1],
        lstm.hidden_size,
        bias=lstm.bias,
        batch_first=lstm.batch_first,
        bidirectional=lstm.bidirectional,
        proj_size=lstm.proj_size,
        device=like.device,
        dtype=like.dtype,
    )
    layer.load_state_dict(weights)
    return layer
