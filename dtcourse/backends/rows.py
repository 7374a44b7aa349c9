"""Makes the rows of a tape: an operation, a region, a mark, as integers and references.

Whoever keeps a tape uses it: a rank that records itself, or a process that records what a rank asks of it.
"""

from __future__ import annotations

import json
import zlib
from typing import Any, NamedTuple

import torch

from dtcourse.backends.tape import WIDTH, Column, Kind, Writer
from dtcourse.raw import dtype_name

Place = tuple[str, int, str]  # file, line, function


class Group(NamedTuple):
    """A process group, as the tapes know it."""

    number: int  # the same on all its ranks
    ranks: tuple[int, ...]  # global
    strict: bool = False  # refuse what NCCL would refuse


class Rows:
    """Rows for one tape."""

    def __init__(self, tape: Writer) -> None:
        self._tape = tape

    def row(self, kind: int, op: str, place: Place | None, labels: int = 0) -> list[int]:
        """`labels`: a reference to those that hold here."""
        row = [0] * WIDTH
        row[Column.KIND] = kind
        row[Column.OP] = self._tape.text(op)
        row[Column.PEER] = -1
        row[Column.LABELS] = labels
        if place:
            row[Column.LINE] = self._tape.text(json.dumps(place))
        return row

    def operation(
        self, kind: int, op: str, group: Group, peer: int, tensors: list[torch.Tensor], tag: int, agree_on: Any,
        place: Place | None, labels: int = 0,
    ) -> list[int]:  # fmt: skip
        """`tensors`: only their dtypes and shapes are read. `agree_on`: what has to be equal on all ranks."""
        described = [[dtype_name(t.dtype), list(t.shape)] for t in tensors]
        what = [op, peer, described] if kind == Kind.COLLECTIVE else sorted({d[0] for d in described})
        row = self.row(kind, op, place, labels)
        row[Column.GROUP] = group.number
        row[Column.MEMBERS] = self._tape.text(json.dumps(group.ranks))
        row[Column.SIZE] = len(group.ranks)
        row[Column.PEER] = peer
        row[Column.TAG] = tag
        row[Column.BYTES] = sum(t.numel() * t.element_size() for t in tensors)
        row[Column.ELEMENTS] = sum(t.numel() for t in tensors)
        row[Column.SIGNATURE] = zlib.crc32(repr(what if agree_on is None else agree_on).encode())
        row[Column.TENSOR] = self._tape.text(json.dumps(described))
        return row


def number(value: Any) -> Any:
    """What JSON does not know, as a number: a tensor or an array of one element."""
    if not hasattr(value, "item"):
        raise TypeError(f"region and mark keep numbers and strings, and this is a {type(value).__name__}")
    return value.item()
