"""Who may know whom: the three rules of the house, read from the source of every file, lazy and relative imports too.

1. Algorithms know torch, the standard library, each other, and `region` and `mark` of the events.
2. Views know a run and what it is made of, and never touch processes.
3. Nothing knows what is above it, and no module imports itself in a circle.
"""

import ast
import graphlib
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "dtcourse"

ALGORITHMS = {"collectives", "parameter_server", "data_parallel", "model_parallel", "pipeline"}
BOTTOM = {"events", "errors", "failures", "origins", "network", "raw"}
LIBRARY = BOTTOM | {"run", "backends", "cluster"}

# room -> what of ours it may know besides itself: rooms, or single names of a room
KNOWS = {
    "events": set(),
    "origins": set(),
    "network": set(),
    "raw": set(),
    "datasets": set(),
    "errors": {"events"},
    "failures": set(),
    **dict.fromkeys(ALGORITHMS, ALGORITHMS | {"events.region", "events.mark"}),
    "trace": {"events"},
    "run": {"events", "origins", "raw", "trace"},
    "views": {"events", "origins", "run"},
    "backends": BOTTOM | {"collectives"},
    "cluster": BOTTOM | {"collectives", "backends", "run"},
    "grading": LIBRARY | ALGORITHMS | {"__init__", "views"},
    "probe": set(),
    "doctor": {"probe"},
    "demo": {"__init__", "collectives", "origins", "run", "views"},
    "cli": {"demo", "doctor", "grading"},
    "__init__": LIBRARY,  # what `from dtcourse import ...` offers
}
# Upwards, and so never when a module is loaded: only inside a function, or for the type checker.
LAZILY = {"errors": {"run"}, "trace": {"run"}, "run": {"views"}, "__init__": {"grading"}}

PROCESSES = {"multiprocessing", "subprocess", "socket", "signal", "torch.distributed", "torch.multiprocessing"}


@dataclass(frozen=True)
class Import:
    """`by` imports `name` of the module `of`, or all of it (no name)."""

    by: str
    of: str
    name: str = ""
    line: int = 0
    lazy: bool = False

    def __str__(self) -> str:
        return f"{self.by}, line {self.line}: imports {self.of}{self.name and '.' + self.name}"


def imports(source: str, by: str, modules: Iterable[str]) -> Iterator[Import]:
    """All imports in the source of the module `by` (a package ends in `.__init__`), lazy ones too."""
    modules = set(modules)
    home = by.split(".")[:-1]

    def walk(node: ast.AST, lazy: bool) -> Iterator[Import]:
        typing_only = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        lazy = lazy or typing_only or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Import):
            yield from (Import(by, alias.name, "", line, lazy) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = home[: len(home) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                whole = f"{base}.{alias.name}"  # `from package import module`
                known = whole in modules or f"{whole}.__init__" in modules
                yield Import(by, *((whole, "") if known else (base, alias.name)), line, lazy)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in ("import_module", "__import__"):
            target = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else "(computed)"
            yield Import(by, str(target), "", line, lazy)
        for child in ast.iter_child_nodes(node):
            yield from walk(child, lazy)

    for found in walk(ast.parse(source), lazy=False):
        # Of a package the module that is loaded is its __init__.
        yield replace(found, of=f"{found.of}.__init__") if f"{found.of}.__init__" in modules else found


def room(module: str) -> str:
    """`dtcourse.views.player` is in the room `views`; the package's own `__init__` is a room, too."""
    return module.split(".")[1]


def allowed(found: Import) -> bool:
    """Whether the rules let `found.by` know what it imports."""
    here = room(found.by)
    if found.of.split(".")[0] != "dtcourse":
        top = found.of.split(".")[0]
        if here in ALGORITHMS:
            return top == "torch" or top in sys.stdlib_module_names
        return here != "views" or not {top, ".".join([*found.of.split("."), found.name][:2])} & PROCESSES
    there = room(found.of)
    may = KNOWS[here] | (LAZILY.get(here, set()) if found.lazy else set())
    return there in may | {here} or f"{there}.{found.name}" in may


def circle(found: Iterable[Import]) -> list[str]:
    """The modules of a circle of imports that happen while modules are loaded; empty if there is none."""
    graph: dict[str, set[str]] = {}
    for one in found:
        if not one.lazy and one.of != one.by:
            graph.setdefault(one.by, set()).add(one.of)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as problem:
        return problem.args[1]
    return []


FILES = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path for path in PACKAGE.rglob("*.py")}


def everything() -> list[Import]:
    return [one for module, path in FILES.items() for one in imports(path.read_text(), module, FILES)]


def test_every_room_is_in_the_table():
    assert {room(module) for module in FILES} <= set(KNOWS), "a new room: say in KNOWS what it may know"


def test_nobody_knows_what_it_should_not():
    assert [str(one) for one in everything() if not allowed(one)] == []


def test_no_circle():
    assert circle(everything()) == []


# -- the checks themselves, on sources that are wrong ------------------------------------------------------------------

MODULES = [f"dtcourse.{name}" for name in ("__init__", "run", "events", "views.__init__", "views.player", "doctor")]
MODULES += ["dtcourse.cluster.__init__", "dtcourse.collectives.__init__", "dtcourse.collectives.ring", "dtcourse.cli"]

WRONG = [
    ("dtcourse.collectives.ring", "from dtcourse.events import Event"),
    ("dtcourse.collectives.ring", "import dtcourse.events"),
    ("dtcourse.collectives.ring", "from dtcourse import events"),
    ("dtcourse.collectives.ring", "from dtcourse import Cluster"),
    ("dtcourse.collectives.ring", "from ..cluster import Cluster"),
    ("dtcourse.collectives.ring", "import numpy as np"),
    ("dtcourse.collectives.ring", "def f():\n    from dtcourse.views import player"),
    ("dtcourse.views.player", "from dtcourse.cluster import Cluster"),
    ("dtcourse.views.player", "from .. import cluster"),
    ("dtcourse.views.player", "import torch.distributed as dist"),
    ("dtcourse.views.player", "from torch import distributed"),
    ("dtcourse.views.player", "import subprocess"),
    ("dtcourse.views.player", "import importlib\nimportlib.import_module('dtcourse.cluster')"),
    ("dtcourse.run", "from dtcourse.views.player import Player"),
    ("dtcourse.run", "from .views import player"),
    ("dtcourse.run", "def f():\n    from dtcourse.cli import main"),
    ("dtcourse.events", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from dtcourse.run import Run"),
    ("dtcourse.cluster.__init__", "from dtcourse import doctor"),
    ("dtcourse.cluster.__init__", "from ..cli import main"),
    ("dtcourse.__init__", "import dtcourse.cli"),
]

RIGHT = [
    ("dtcourse.collectives.ring", "from dtcourse.events import mark, region"),
    ("dtcourse.collectives.ring", "import math\nimport torch.distributed as dist\nfrom . import root"),
    ("dtcourse.views.player", "from ..run import Run\nimport anywidget, torch\nfrom . import chunks"),
    ("dtcourse.run", "def player():\n    from dtcourse.views.player import Player"),
    ("dtcourse.cluster.__init__", "from ..run import Run\nimport multiprocessing"),
    ("dtcourse.demo", "def f():\n    from dtcourse import Cluster"),
]


@pytest.mark.parametrize(("by", "source"), WRONG)
def test_a_wrong_import_is_seen(by, source):
    assert not all(allowed(one) for one in imports(source, by, MODULES))


@pytest.mark.parametrize(("by", "source"), RIGHT)
def test_a_right_import_passes(by, source):
    assert [str(one) for one in imports(source, by, MODULES) if not allowed(one)] == []


def test_a_circle_is_seen_unless_one_side_is_lazy():
    def two(run: str) -> list[Import]:
        other = "from dtcourse import run"
        return [*imports(run, "dtcourse.run", MODULES), *imports(other, "dtcourse.views.player", MODULES)]

    assert set(circle(two("import dtcourse.views.player"))) == {"dtcourse.run", "dtcourse.views.player"}
    assert circle(two("def f():\n    import dtcourse.views.player")) == []
