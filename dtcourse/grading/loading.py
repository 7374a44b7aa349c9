"""What a rank does with a reader's file: import it by its path, freshly each time, and call one of its functions."""

from __future__ import annotations

import linecache
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType
from typing import Any

import torch.distributed as dist

from dtcourse.grading.glance import syntax


def examine(file: str) -> tuple[list[str], str | None]:
    """Import the file: the names in it that can be called, and what went wrong, if it cannot be imported."""
    try:
        module = load(file)
    except SyntaxError as problem:
        return [], syntax(problem)
    except BaseException as problem:  # SystemExit too
        return [], f"{_place(problem, file)} raised {type(problem).__name__}: {problem}"
    return [name for name, value in vars(module).items() if callable(value)], None


def call(
    file: str,
    name: str | tuple[str, ...],
    *args: Any,
    group: Sequence[int] | None = None,
    around: Callable[..., Any] | None = None,
) -> Any:
    """Call the function of that name. `group`: the ranks of a sub-group that it is given; the others do not call it.

    `around` is called in its place, with the function as its first argument, or a tuple of functions for several names.
    """
    module = load(file)
    found = getattr(module, name) if isinstance(name, str) else tuple(getattr(module, one) for one in name)
    if around is not None:
        found = partial(around, found)
    if group is None:
        return found(*args)
    subgroup = dist.new_group(list(group))
    return found(*args, group=subgroup) if dist.get_rank() in group else None


def load(file: str) -> ModuleType:
    """Import the file as it is now, and its helpers beside it: not from sys.modules, nor from compiled leftovers."""
    folder, name = os.path.dirname(file), os.path.basename(file).removesuffix(".py")
    _forget_other_files(folder)
    sys.dont_write_bytecode = True
    linecache.checkcache(file)
    with open(file, "rb") as source:
        code = compile(source.read(), file, "exec", dont_inherit=True)
    module = ModuleType(name)
    module.__file__ = file
    sys.modules[name] = module  # dataclasses and pickle look there
    exec(code, module.__dict__)
    return module


_folder: str | None = None


def _forget_other_files(folder: str) -> None:
    """The ranks serve one file after another: the helpers of the last one are not those of the next."""
    global _folder
    if _folder is not None:
        for name, module in list(sys.modules.items()):
            if os.path.dirname(getattr(module, "__file__", None) or "") == _folder:
                del sys.modules[name]
        sys.path.remove(_folder)
    sys.path.insert(0, folder)
    _folder = folder


def _place(problem: BaseException, file: str) -> str:
    """The innermost line of the file itself that the traceback names."""
    frames = [frame for frame in traceback.extract_tb(problem.__traceback__) if frame.filename == file]
    return f"line {frames[-1].lineno} ({frames[-1].line})" if frames else "it"
