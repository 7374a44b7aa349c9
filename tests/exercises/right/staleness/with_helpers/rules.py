"""Helper of staleness.py."""

from dataclasses import dataclass
from itertools import accumulate

import torch


def slowest(completed):
    return completed[min(completed, key=completed.get)]


def first(k, fits):
    counted = [*accumulate(fits)]
    if not counted or counted[-1] < k:
        return None
    return [(fit and count <= k) / k for fit, count in zip(fits, counted, strict=True)]


@dataclass
class Compensation:
    weights: torch.Tensor
    backup: torch.Tensor

    def __call__(self, gradient, strength):
        return gradient * (1 + strength * gradient * (self.weights - self.backup))
