"""Which exercises there are, where their files lie, and which tests each has: read, and never imported or run."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TESTS = Path("tests") / "exercises"  # in the folder of the course
COURSE = Path(__file__).resolve().parent.parent.parent  # it is installed in place


@dataclass(frozen=True, slots=True)
class Test:
    """A test that has to be passed, and what it is worth."""

    __test__ = False  # pytest: not a test of ours

    name: str
    title: str
    points: float
    hidden: bool = False  # students learn its name and whether they passed it, and no more


def course_folder(start: Path | None = None) -> Path:
    """The folder with exercises/ and tests/exercises/, from the working folder upwards; else where dtcourse lies."""
    start = (start or Path.cwd()).resolve()
    for folder in (start, *start.parents):
        if (folder / "exercises").is_dir() and (folder / TESTS).is_dir():
            return folder
    return COURSE


def exercises(course: Path) -> list[str]:
    """The names of the exercises: those with tests and a file to fill in."""
    names = sorted(file.stem.removeprefix("test_") for file in (course / TESTS).glob("test_*.py"))
    return [name for name in names if (course / "exercises" / f"{name}.py").is_file()]


def tests_file(course: Path, name: str) -> Path:
    return course / TESTS / f"test_{name}.py"


def tests_of(course: Path, name: str) -> list[Test]:
    """The tests of an exercise, in the order of the file. Raises ValueError if there is no such exercise."""
    known = exercises(course)
    if name not in known:
        these = ", ".join(known) or f"none: no exercises in {course / 'exercises'}"
        raise ValueError(f"there is no exercise {name!r}; there are: {these}")
    tree = ast.parse(tests_file(course, name).read_text(encoding="utf-8"))
    return [Test(node.name, _title(node), _points(node), hidden(node)) for node in _tests(tree)]


def functions_of(course: Path, name: str) -> dict[str, list[str]]:
    """For each test of an exercise, the functions that it or its helpers run, as far as they can be read."""
    tree = ast.parse(tests_file(course, name).read_text(encoding="utf-8"))
    helpers = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    named = {}  # NAMES = ("one", "another")
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=constant)], value=ast.Tuple(elts=values)):
                named[constant] = _texts(values)
    return {
        test.name: [function for node in _with_helpers(test, helpers) for function in _run_by(node, named)]
        for test in _tests(tree)
    }


def _with_helpers(test: ast.FunctionDef, helpers: dict[str, ast.FunctionDef]) -> list[ast.FunctionDef]:
    """A test, the functions of its file that it speaks of, and those that they speak of."""
    found = [test]
    for node in found:  # which grows
        names = [one.id for one in ast.walk(node) if isinstance(one, ast.Name)]
        found += [helpers[name] for name in dict.fromkeys(names) if name in helpers and helpers[name] not in found]
    return found


def _run_by(test: ast.FunctionDef, named: dict[str, list[str]]) -> Iterator[str]:
    """The first argument of each `submission.run("function", ...)`, and `for name in ("one", "another")` before it.

    Who hands the submission on together with a name, `helper(submission, "function", ...)`, has it run there.
    """
    names = dict(named)
    for node in ast.walk(test):
        match node:
            case ast.For(target=ast.Name(id=name), iter=ast.Tuple(elts=values)):
                names[name] = _texts(values)
            case ast.Call(args=[ast.Name(id="submission"), ast.Constant(value=str(function)), *_]):
                yield function
            case ast.Call(func=ast.Attribute(value=ast.Name(id="submission"), attr="run"), args=[first, *_]):
                match first:
                    case ast.Constant(value=str(function)):
                        yield function
                    case ast.Tuple(elts=values):
                        yield from _texts(values)
                    case ast.Name(id=name):
                        yield from names.get(name, ())


def _texts(values: list[ast.expr]) -> list[str]:
    return [v.value for v in values if isinstance(v, ast.Constant) and isinstance(v.value, str)]


def _tests(tree: ast.Module) -> list[ast.FunctionDef]:
    return [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]


def _title(node: ast.FunctionDef) -> str:
    return (ast.get_docstring(node) or node.name.removeprefix("test_").replace("_", " ")).splitlines()[0]


def hidden(node: ast.FunctionDef) -> bool:
    """Whether the test is marked `@pytest.mark.hidden`."""
    return any(ast.unparse(decorator) == "pytest.mark.hidden" for decorator in node.decorator_list)


def _points(node: ast.FunctionDef) -> float:
    """What `@pytest.mark.points(n)` says, 1 without it. Raises ValueError unless n is a finite number, 0 or more."""
    for decorator in node.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.points":
            written = ", ".join(map(ast.unparse, decorator.args))
            try:
                points = ast.literal_eval(written)
            except (ValueError, TypeError, SyntaxError):
                points = math.nan
            if not isinstance(points, (int, float)) or not 0 <= points < math.inf:
                raise ValueError(f"{node.name}: points({written}): what a test is worth is a number, 0 or more")
            return float(points)
    return 1.0
