"""What can be said of a reader's file without running it: no Python, a module that is nowhere, nothing written yet.

Says only what is certain; whatever it does not see, the ranks will. The file is compiled here, and never run.
"""

from __future__ import annotations

import ast
import importlib.util
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

NOT_WRITTEN = "not written yet"

# a file that speaks of these may make names, or places to import from, that cannot be read from it
_DYNAMIC = {"globals", "exec", "eval", "setattr", "vars", "sys", "site", "__dict__", "__getattr__", "__path__", "*"}


@dataclass(frozen=True, slots=True)
class Seen:
    """What is wrong with a file. `stubs`: function -> what it raises, if none of the functions is written."""

    problem: str | None = None
    stubs: dict[str, str] | None = None


def glance(file: Path, functions: Sequence[str], folders: Sequence[Path] = ()) -> Seen:
    """Look at a file that has to have these functions. `folders`: from which it may import, besides its own."""
    try:
        tree = _parse(file)
    except SyntaxError as problem:
        return Seen(f"{file.name} cannot be imported: {syntax(problem)}")
    except (ValueError, RecursionError, MemoryError, OSError):
        return Seen()  # the ranks will say it in their words
    names = set(_names(tree))
    if not names & _DYNAMIC:
        if nowhere := _imported_from_nowhere(tree, [str(file.parent), *map(str, folders)]):
            line, module = nowhere
            text = ast.unparse(line)
            what = f"line {line.lineno} ({text}) raised ModuleNotFoundError: No module named '{module}'"
            return Seen(f"{file.name} cannot be imported: {what}")
        if missing := [name for name in functions if name not in names]:
            return Seen(no_function(file, missing[0]))
    written = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    stubs = {name: said for name in functions if name in written and (said := _stub(written[name], classes))}
    return Seen(stubs=stubs if stubs and len(stubs) == len(functions) else None)


def no_function(file: Path, name: str) -> str:
    return f"{file.name} has no function {name}: it must be there, under this name"


def syntax(problem: SyntaxError) -> str:
    """ "line 2 is not Python ('(' was never closed):  return (" """
    return f"line {problem.lineno} is not Python ({problem.msg}):  {(problem.text or '').strip()}"


def uses(file: Path, name: str) -> set[str]:
    """The functions of the file that `name` speaks of, itself among them, and those that they speak of."""
    try:
        tree = _parse(file)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OSError):
        return {name}
    spoken = {node.name: set(_names(node)) for node in tree.body if isinstance(node, ast.FunctionDef)}
    found, new = {name}, {name}
    while new := {other for one in new for other in spoken.get(one, ()) if other in spoken} - found:
        found |= new
    return found


def _parse(file: Path) -> ast.Module:
    source = file.read_bytes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the rank's own compiling says them
        compile(source, str(file), "exec", dont_inherit=True)  # sees more than the parser: `return` outside a function
        return ast.parse(source, str(file))


def _names(tree: ast.AST) -> Iterator[str]:
    """All names in the code, whatever they are there for."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.alias(name=name, asname=other):
                yield from (*name.split("."), other or "")


def _imported_from_nowhere(tree: ast.Module, folders: list[str]) -> tuple[ast.stmt, str] | None:
    """The first statement at the file's own level that imports a module which is in no folder."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            modules = [node.module or ""]
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Expr, ast.Assign, ast.AnnAssign)):
            continue
        else:
            return None  # what follows may depend on it
        for module in modules:
            top = module.partition(".")[0]
            if not _is_somewhere(top, folders):
                return node, top
    return None


def _is_somewhere(module: str, folders: list[str]) -> bool:
    try:
        return bool(PathFinder.find_spec(module, folders) or importlib.util.find_spec(module))
    except (ImportError, ValueError, OSError):
        return True  # not certain


def _stub(function: ast.FunctionDef, classes: dict[str, ast.ClassDef]) -> str | None:
    """What a stub raises: a function that does nothing but raise NotImplementedError("not written yet: ...").

    Or one that does nothing but apply an autograd function whose forward is one.
    """
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    match body:
        case [ast.Raise(exc=ast.Call(func=ast.Name(id="NotImplementedError"), args=[ast.Constant(value=str(said))]))]:
            return said if said.startswith(NOT_WRITTEN) else None
        case [ast.Return(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="apply")))] if name in classes:
            return _forward_stub(classes[name])
    return None


def _forward_stub(node: ast.ClassDef) -> str | None:
    methods = {method.name: method for method in node.body if isinstance(method, ast.FunctionDef)}
    if [ast.unparse(base) for base in node.bases] != ["torch.autograd.Function"] or "apply" in methods:
        return None  # who knows what apply does
    return _stub(methods["forward"], {}) if "forward" in methods else None
