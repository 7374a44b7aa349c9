"""The bytes of tensors that a rank holds while it trains, by kind: counted at every operation, and predicted.

    with Memory(sharded.tensors) as memory:
        with sharded.step():
            loss(model(x), y).backward()
    memory.peak       {"parameters": 5000, "gradients": 6200, "optimizer state": 10000, "the rest": 900}

The states of a model of E elements, in bytes, with Adam, N ranks, p and g bytes for a parameter and its gradient, o for
what the optimizer keeps of it:

    stage   parameters    gradients    optimizer state    7.5e9 elements, 64 ranks, p = 2, g = 2, o = 12
    0       p E           g E          o E                120.0 GB
    1       p E           g E          o E / N             31.4 GB
    2       p E           g E / N      o E / N             16.6 GB
    3       p E / N       g E / N      o E / N              1.9 GB

That is the theory. A rank also needs what it computes with: in stage 3 the unit of the moment, whole; in stages 2 and 3
the gradients of that unit, until they are exchanged; and in each stage, for a moment, one more tensor as large as the
largest parameter: its gradient on the way into the row, or what the optimizer works with. `predicted` counts these too,
if it is told their sizes; activations it does not know.

Source: Rajbhandari et al., "ZeRO" (2020), section 5 and figure 1.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Kinds = Callable[[], Mapping[str, Iterable[torch.Tensor]]]

THE_REST = "the rest"  # activations, buffers of the exchange, what an operation makes for a moment


class Memory(TorchDispatchMode):
    """Counts, after each operation inside the block, the storages that live. What lived before it and is of no kind
    (the samples, say) is not counted; what an operation needs and frees inside itself is not seen.

    history    one count per operation: kind -> bytes
    peak       the count with the highest sum
    """

    def __init__(self, kinds: Kinds) -> None:
        super().__init__()
        self._kinds = kinds
        self._made: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self.history: list[dict[str, int]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        outputs = function(*args, **(kwargs or {}))
        given = {storage._cdata for storage in _storages((args, kwargs))}
        for storage in _storages(outputs):
            if storage._cdata not in given:  # otherwise it is a view, or was changed in place: nothing new
                self._made[storage._cdata] = weakref.ref(storage)
        self.history.append(self._count())
        return outputs

    @property
    def peak(self) -> dict[str, int]:
        return max(self.history, key=lambda count: sum(count.values()))

    def _count(self) -> dict[str, int]:
        seen: set[int] = set()
        count = {}
        for kind, tensors in self._kinds().items():
            storages = {storage._cdata: storage.nbytes() for storage in _storages(list(tensors))}
            count[kind] = sum(size for key, size in storages.items() if key not in seen)
            seen |= storages.keys()
        living = {key: storage for key, made in self._made.items() if (storage := made()) is not None}
        self._made = {key: self._made[key] for key in living}
        return count | {THE_REST: sum(storage.nbytes() for key, storage in living.items() if key not in seen)}


def _storages(tree: Any) -> list[torch.UntypedStorage]:
    return [leaf.untyped_storage() for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def kinds_of(module: nn.Module, optimizer: torch.optim.Optimizer) -> Kinds:
    """The kinds of a model that is not sharded, for `Memory`."""

    def kinds() -> dict[str, list[torch.Tensor]]:
        states = [value for state in optimizer.state.values() for value in state.values()]
        return {
            "parameters": [*module.parameters()],
            "gradients": [parameter.grad for parameter in module.parameters() if parameter.grad is not None],
            "optimizer state": [value for value in states if isinstance(value, torch.Tensor)],
        }

    return kinds


def predicted(
    stage: int,
    elements: float,
    world: int,
    *,
    unit: float = 0,
    largest: float = 0,
    parameter_bytes: int = 4,
    gradient_bytes: int = 4,
    optimizer_bytes: int = 8,
) -> dict[str, float]:
    """Bytes a rank by kind, at the peak of a step, of a model of so many elements; stage 0 is without sharding.

    unit             elements of the largest unit: what is whole at a time
    largest          elements of the largest parameter
    optimizer_bytes  kept for each element: 8 for Adam in float32, 4 for SGD with momentum, 0 for SGD

    Raises ValueError for another stage than 0 to 3, or a world without ranks.
    """
    if stage not in range(4) or world < 1:
        raise ValueError(f"stage={stage}, world={world}: stages are 0 to 3, and a world has ranks")
    return {
        "parameters": parameter_bytes * (elements / world + unit if stage == 3 else elements),
        "gradients": gradient_bytes * ((elements / world + unit if stage >= 2 else elements) + largest),
        "optimizer state": optimizer_bytes * (elements / world if stage else elements),
    }
