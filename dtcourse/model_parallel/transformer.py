"""The undivided transformer layer: attention, then an MLP, each after a normalisation and around a shortcut.

B = batch, T = time, D = features, H = heads, K = D / H features of a head.

Source: Vaswani et al., "Attention is all you need" (2017); the normalisation first, as in GPT-2 (2019).
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class MLP(nn.Module):
    """(B, T, D) to (B, T, D), through `hidden` features."""

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(features, hidden), nn.Linear(hidden, features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(x)))


class Attention(nn.Module):
    """Causal self-attention, (B, T, D) to (B, T, D). Raises ValueError if the heads do not divide the features.

    The rows of `qkv` are ordered head by head, first a head's queries, then its keys, then its values: so a run of
    rows is a run of heads, and whoever holds only some of the rows computes those heads and no others.
    """

    def __init__(self, features: int, heads: int) -> None:
        super().__init__()
        if features % heads:
            raise ValueError(f"{features} features cannot be shared equally by {heads} heads")
        self.head_features = features // heads
        self.qkv, self.out = nn.Linear(features, 3 * features), nn.Linear(features, features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        qkv = self.qkv(x).unflatten(-1, (-1, 3, self.head_features))  # (B, T, H, 3, K); H: those in our rows
        q, k, v = qkv.transpose(1, 2).unbind(3)  # (B, H, T, K) each
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(heads.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """One transformer layer, (B, T, D) to (B, T, D); its MLP is four times as wide as its inputs."""

    def __init__(self, features: int, heads: int) -> None:
        super().__init__()
        self.attention_norm, self.attention = nn.LayerNorm(features), Attention(features, heads)
        self.mlp_norm, self.mlp = nn.LayerNorm(features), MLP(features, 4 * features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))
