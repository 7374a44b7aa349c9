"""What of the course a rank needs to do what a test asks: read from the request and from the sources, and no more.

A jail holds nothing of the course but what every rank has. What a test calls around a function of the submission (a
server, say) comes along with the request, as texts of modules in which everything is left out that it does not speak
of. So the course's own solution of an exercise is not there when somebody is asked for his.

Only what a module imports when it is loaded comes along: what is imported in a function is for the grader's process.
"""

from __future__ import annotations

import ast
import pickletools
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path

_ROOM = Path(__file__).resolve().parents[3]
_ALL = "*"

Names = frozenset[str]


def sources(request: bytes, there: Collection[str]) -> dict[str, str]:
    """module -> text, of what a pickled request speaks of, and so on; without the modules that are `there`."""
    texts = frozenset(text for _, text, _ in pickletools.genops(request) if isinstance(text, str))
    return _closure(frozenset(text for text in texts if _is_module(text)), texts, frozenset(there))


@cache
def _closure(modules: Names, names: Names, there: Names) -> dict[str, str]:
    wanted: dict[str, set[str]] = {}
    new = {(module, name) for module in modules for name in names | {""}}
    while new:
        changed = set()
        for module, name in new:
            for package in _packages(module):
                if package not in there and package not in wanted:
                    wanted[package] = set()
                    changed.add(package)
            if module in wanted and name in (_ALL, *_providers(module)) and name not in wanted[module]:
                wanted[module].add(name)
                changed.add(module)
        new = {one for module in changed for one in _shaken(module, frozenset(wanted[module]))[1]}
    return {module: _shaken(module, frozenset(names))[0] for module, names in wanted.items()}


@cache
def _shaken(module: str, names: Names) -> tuple[str, frozenset[tuple[str, str]]]:
    """The text of a module with what `names` need, on their own lines; and what that imports: (module, name)."""
    providers, tree = _providers(module), _tree(module)
    kept = {node for node in tree.body if not _provided(node, module) and not _is_for_types(node)}
    left = list(providers) if _ALL in names else list(names)
    left += [name for node in kept for name in _spoken(node)]
    seen = set()
    while left:
        if (name := left.pop()) in seen or name not in providers:
            continue
        seen.add(name)
        kept.add(providers[name])
        left += _spoken(providers[name])
    lines = _text(module).splitlines()
    for node in tree.body:
        if node not in kept:
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
            lines[first - 1 : node.end_lineno] = [""] * (node.end_lineno - first + 1)
    return "\n".join(lines), frozenset(one for node in kept for one in _imported(node, module))


def _spoken(node: ast.AST) -> Iterator[str]:
    return (n.id for n in ast.walk(node) if isinstance(n, ast.Name))


@cache
def _providers(module: str) -> dict[str, ast.stmt]:
    """name -> the statement of the module that gives it its meaning."""
    return {name: node for node in _tree(module).body for name in _provided(node, module)}


def _provided(node: ast.stmt, module: str) -> list[str]:
    match node:
        case ast.ImportFrom(module="__future__"):
            return []
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            return [alias.asname or alias.name.split(".")[0] for alias in aliases]
        case ast.Assign(targets=targets):
            return [n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
    return []


def _is_for_types(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def _imported(node: ast.stmt, by: str) -> Iterator[tuple[str, str]]:
    """(module of the course, name in it) for each name that a statement imports."""
    if isinstance(node, ast.Import):
        yield from ((alias.name, _ALL) for alias in node.names if _is_module(alias.name))
    elif isinstance(node, ast.ImportFrom):
        home = by.split(".") if _file(by).name == "__init__.py" else by.split(".")[:-1]
        above = home[: len(home) - node.level + 1] if node.level else []
        module = ".".join([*above, *([node.module] if node.module else [])])
        for alias in node.names:
            if _is_module(whole := f"{module}.{alias.name}"):
                yield whole, _ALL
            elif _is_module(module):
                yield module, alias.name


def _packages(module: str) -> list[str]:
    """A module, and the packages that it lies in."""
    parts = module.split(".")
    return [".".join(parts[:length]) for length in range(1, len(parts) + 1)]


def _is_module(name: str) -> bool:
    return name.startswith("dtcourse.") and name.replace(".", "").isidentifier() and _file(name) is not None


@cache
def _file(name: str) -> Path | None:
    path = _ROOM.joinpath(*name.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


@cache
def _text(module: str) -> str:
    return _file(module).read_text(encoding="utf-8")


@cache
def _tree(module: str) -> ast.Module:
    return ast.parse(_text(module))
