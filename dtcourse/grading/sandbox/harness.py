"""Which of the course's own modules a rank needs to do what a test asks: read from the request and from the sources.

A jail holds nothing of the course but what every rank has. What a test calls around a function of the submission (a
server, say) comes along with the request, as texts; so the algorithms of the course are not there when one of them is
the exercise.
"""

from __future__ import annotations

import ast
import pickletools
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path

_ROOM = Path(__file__).resolve().parents[3]


def sources(request: bytes, there: Collection[str]) -> dict[str, str]:
    """The modules that a pickled request names, and what they import, by name; without those that are `there`."""
    found: dict[str, str] = {}
    texts = (text for _, text, _ in pickletools.genops(request) if isinstance(text, str))
    new = {text for text in texts if text.startswith("dtcourse.")}
    while new := {name for name in _modules(new) if name not in found and name not in there}:
        found |= {name: _source(name) for name in new}
        new = {imported for name in new for imported in _imports(name)}
    return found


def _modules(names: Collection[str]) -> Iterator[str]:
    """Those of the names, and of what they lie in, that are modules of the course."""
    for name in names:
        parts = name.split(".")
        for length in range(2, len(parts) + 1):
            if _file(module := ".".join(parts[:length])):
                yield module


@cache
def _file(name: str) -> Path | None:
    path = _ROOM.joinpath(*name.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


@cache
def _source(name: str) -> str:
    return _file(name).read_text(encoding="utf-8")


@cache
def _imports(name: str) -> frozenset[str]:
    """What a module names in its imports, lazy ones too, and what each may be a module of."""
    found: set[str] = set()
    parts, package = name.split("."), _file(name).name == "__init__.py"
    for node in ast.walk(ast.parse(_source(name))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = parts[: len(parts) + package - node.level] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            found |= {f"{base}.{alias.name}" for alias in node.names}
    return frozenset(one for one in found if one.startswith("dtcourse."))
