"""The namespace that a rank keeps between the `%%ranks` cells of a notebook."""

from __future__ import annotations

import ast
from typing import Any

import torch
import torch.distributed as dist

_namespace: dict[str, Any] = {}  # of this process, which is a rank


def run_cell(source: str, filename: str) -> None:
    """In a rank: run a cell; the value of its last line, if that is an expression, is printed."""
    if not _namespace:
        _namespace.update(torch=torch, dist=dist, rank=dist.get_rank(), world_size=dist.get_world_size())
        _namespace["__name__"] = "__main__"
    tree = ast.parse(source, filename)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, filename, "exec"), _namespace)
    if last is not None:
        value = eval(compile(ast.Expression(last.value), filename, "eval"), _namespace)  # type: ignore[attr-defined]
        if value is not None:
            print(repr(value))
