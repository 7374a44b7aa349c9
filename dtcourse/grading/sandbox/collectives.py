"""What the library's collectives give, computed by the grader from what each rank put in. Pure functions of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import torch

Tensors = list[torch.Tensor]

REDUCTIONS = {
    "SUM": torch.add,
    "AVG": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}
OPERATIONS = ("all_reduce", "broadcast", "reduce", "all_gather", "gather", "scatter", "reduce_scatter", "all_to_all",
              "barrier")  # fmt: skip


@dataclass(frozen=True)
class Side:
    """One rank's part. `whole`: an input holds what is for all ranks, one after the other; `sizes`: rows for each."""

    op: str
    inputs: Tensors
    outputs: Tensors  # only their dtypes and shapes are read
    root: int | None = None  # in the group, as all other numbers here
    reduction: str = "SUM"
    whole: bool = False
    sizes: list[int] = field(default_factory=list)

    def agree_on(self) -> Any:
        """What has to be equal on all ranks."""
        alike = self.inputs
        if self.op == "all_gather" and not self.whole:
            alike = self.outputs
        elif self.op == "all_to_all":
            alike = []
        elif self.op == "scatter":
            alike = self.outputs
        dtypes = tuple(t.dtype for t in self.described)
        reduction = self.reduction if "reduce" in self.op else ""
        return self.op, self.root, reduction, dtypes, tuple(tuple(t.shape) for t in alike)

    @property
    def described(self) -> Tensors:
        """The tensors by which the record knows it."""
        return self.outputs if self.op == "scatter" else self.inputs


def results(sides: Sequence[Side]) -> list[Tensors]:
    """What each rank receives, in the order of its outputs. `sides`: of all ranks of the group, in their order."""
    first, everybody = sides[0], range(len(sides))
    inputs = [_parts(side, len(sides)) for side in sides]
    if first.op == "barrier":
        return [[] for _ in everybody]
    if first.op in ("all_reduce", "reduce"):
        total = [_reduced([inputs[r][i] for r in everybody], first.reduction) for i in range(len(inputs[0]))]
        return [total if first.op == "all_reduce" or rank == first.root else [] for rank in everybody]
    if first.op == "broadcast":
        return [inputs[first.root] for _ in everybody]
    if first.op == "all_gather":
        gathered = [inputs[r][i] for i in range(len(inputs[0])) for r in everybody]
        return [gathered for _ in everybody]
    if first.op == "gather":
        gathered = [inputs[r][0] for r in everybody]
        return [gathered if rank == first.root else [] for rank in everybody]
    if first.op == "scatter":
        return [[inputs[first.root][rank]] for rank in everybody]
    if first.op == "reduce_scatter":
        size = len(sides)
        return [
            [
                _reduced([inputs[r][i * size + rank] for r in everybody], first.reduction)
                for i in range(len(inputs[0]) // size)
            ]
            for rank in everybody
        ]
    return [[inputs[r][rank] for r in everybody] for rank in everybody]  # all_to_all


def _parts(side: Side, size: int) -> Tensors:
    """The inputs; where one holds what is for all ranks, the parts of it."""
    if not side.whole or side.op == "all_gather":
        return side.inputs
    if side.sizes:
        return [part for tensor in side.inputs for part in tensor.split(side.sizes)]
    return [part for tensor in side.inputs for part in tensor.flatten().tensor_split(size)]


def _reduced(parts: Tensors, reduction: str) -> torch.Tensor:
    """In the order of the ranks, so that all have the same sum to the last bit."""
    total = reduce(REDUCTIONS[reduction], parts).to(parts[0].dtype)
    return total / len(parts) if reduction == "AVG" else total


# -- what does not fit -------------------------------------------------------------------------------------------------


def unlike(values: list[torch.Tensor], expected: list[torch.Tensor], whole: bool) -> str | None:
    """What is wrong, if these values do not fit where they are expected. `whole`: many of them into one."""
    came, room = ([(value.numel(), value.dtype) for value in tensors] for tensors in (values, expected))
    if whole:
        came, room = _added(came), _added(room)
    elif room and len(came) != len(room):
        return f"has room for {len(room)} tensors, and {len(came)} come"
    for one, place in zip(came, room, strict=False):
        if one != place:
            return f"has room for {place[0]} elements of {place[1]}, and {one[0]} elements of {one[1]} come"
    return None


def _added(sizes: list[tuple[int, torch.dtype]]) -> list[tuple[int, torch.dtype]]:
    return [(sum(size for size, _ in sizes), sizes[0][1])] if sizes else []


def does_not_fit(what: str, mine: int, theirs: int, second: bool) -> tuple[str, str]:
    """`second`: to come, and so to see what the other side has."""
    other = f"the other side's {theirs}" if second else "what the other side has"
    return "ValueError", f"a {what} of {mine} bytes does not fit {other}"
