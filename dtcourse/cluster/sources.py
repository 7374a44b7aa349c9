"""Names and texts of the reader's source: "cell 3, line 5" instead of the path that a notebook gives its cells."""

from __future__ import annotations

import linecache
import os
import sys
from typing import Any


def label(file: str) -> str:
    """What a reader calls a source file: "cell 3", or a path relative to the working folder."""
    number = _cell_number(file)
    if number is not None:
        return f"cell {number}"
    if not os.path.isabs(file):
        return file
    try:
        relative = os.path.relpath(file)
    except OSError:  # the working folder is gone
        return file
    return relative if not relative.startswith("..") else os.path.join(*file.split(os.sep)[-2:])


def text(file: str) -> str:
    """The text of a source file as it is now; empty if it cannot be had."""
    linecache.checkcache(file)
    return "".join(linecache.getlines(file))


def line(file: str, number: int) -> str:
    """One line, stripped."""
    linecache.checkcache(file)
    return linecache.getline(file, number).strip()


def place(file: str, number: int, function: str = "") -> str:
    """ "cell 3, line 5, in train"."""
    inside = f", in {function}" if function and not function.startswith("<") else ""
    return f"{label(file)}, line {number}{inside}"


def _cell_number(file: str) -> int | None:
    shell = _shell()
    names: dict[str, Any] = getattr(getattr(shell, "compile", None), "_filename_map", {})
    return names.get(file)


def _shell() -> Any:
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython else None


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    return hasattr(_shell(), "kernel")
