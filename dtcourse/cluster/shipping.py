"""Functions and arguments on their way to the ranks, and results on their way back."""

from __future__ import annotations

import importlib
import io
import os
import sys
import sysconfig
from collections import ChainMap
from collections.abc import Iterable
from types import CodeType, ModuleType
from typing import Any, ClassVar

import cloudpickle

from dtcourse.cluster.home import reduced_on_the_cpu

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_LIBRARIES = tuple(
    os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")
)


class per_rank:
    """An argument that is different on each rank: `per_rank([a, b, c, d])` gives `a` to rank 0, and so on."""

    def __init__(self, values: Iterable[Any]) -> None:
        self.values = list(values)

    def __repr__(self) -> str:
        return f"per_rank({self.values!r})"


class _Pickler(cloudpickle.Pickler):
    """cloudpickle's, but for three things.

    File names are kept: without them no line of the reader's could be named. And module-like objects (torch.backends,
    torch.ops) are imported by name in the rank. Tensors of a GPU travel as those of the CPU.
    """

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, ModuleType) and type(obj) is not ModuleType and sys.modules.get(obj.__name__) is obj:
            return importlib.import_module, (obj.__name__,)
        return reduced_on_the_cpu(obj) or super().reducer_override(obj)

    @staticmethod
    def _reduce_code(code: CodeType) -> tuple:
        make, values = cloudpickle.Pickler.dispatch_table[CodeType](code)
        return make, tuple(code.co_filename if isinstance(v, str) and v == "<dynamic-code>" else v for v in values)

    dispatch_table: ClassVar = ChainMap({CodeType: _reduce_code}, cloudpickle.Pickler.dispatch_table)


class Shipper:
    """Pickles for the ranks of one process.

    The reader's own modules travel by value, like functions from a notebook: an edited and reloaded file takes
    effect in ranks that have been there for an hour.
    """

    def __init__(self) -> None:
        self._modules_seen: set[str] = set()

    def pack(self, function: Any, args: tuple, kwargs: dict[str, Any], world: int) -> list[bytes]:
        """What to send to each rank. Raises TypeError or ValueError, before anything is sent, if it cannot be."""
        self._take_modules_by_value()
        for value in (*args, *kwargs.values()):
            if isinstance(value, per_rank) and len(value.values) != world:
                raise ValueError(f"per_rank(...) holds {len(value.values)} values for {world} ranks: give one to each")
        if not any(isinstance(v, per_rank) for v in (*args, *kwargs.values())):
            return [_dumps((function, args, kwargs), function)] * world
        return [
            _dumps((function, [_pick(v, r) for v in args], {k: _pick(v, r) for k, v in kwargs.items()}), function)
            for r in range(world)
        ]

    def _take_modules_by_value(self) -> None:
        if len(sys.modules) != len(self._modules_seen):
            new = set(sys.modules) - self._modules_seen
            for module in [sys.modules[name] for name in new]:
                if _is_readers(module):
                    cloudpickle.register_pickle_by_value(module)
            self._modules_seen = set(sys.modules)


def _pick(value: Any, rank: int) -> Any:
    return value.values[rank] if isinstance(value, per_rank) else value


def _is_readers(module: Any) -> bool:
    file = getattr(module, "__file__", None)
    if type(module) is not ModuleType or not isinstance(file, str) or not os.path.isabs(file):
        return False  # torch has module-like objects with invented files
    file = os.path.realpath(file)
    return (
        module.__name__ != "__main__"
        and not file.startswith((_OURS, *_LIBRARIES))
        and f"{os.sep}site-packages{os.sep}" not in file
    )


def _dumps(what: Any, function: Any) -> bytes:
    buffer = io.BytesIO()
    try:
        _Pickler(buffer).dump(what)
        return buffer.getvalue()
    except Exception as problem:
        name = getattr(function, "__name__", repr(function))
        raise TypeError(_reason(function, what[1:], name, problem)) from None


def _reason(function: Any, arguments: tuple, name: str, problem: Exception) -> str:
    """Which of the things that a function uses cannot be sent."""
    used = dict(zip(getattr(getattr(function, "__code__", None), "co_freevars", ()), _cells(function), strict=False))
    names = getattr(getattr(function, "__code__", None), "co_names", ())
    used |= {n: function.__globals__[n] for n in names if n in getattr(function, "__globals__", {})}
    for variable, value in used.items():
        if not _can_be_sent(value):
            return (
                f"{name} cannot be sent to the ranks: it uses {variable}, a {type(value).__name__}, which lives in "
                f"this process alone. Create it inside {name}, so that each rank has its own. ({problem})"
            )
    for value in (*arguments[0], *arguments[1].values()):
        if not _can_be_sent(value):
            return (
                f"an argument of {name} cannot be sent to the ranks: a {type(value).__name__} lives in this process "
                f"alone. ({problem})"
            )
    return f"{name} cannot be sent to the ranks: {problem}"


def _cells(function: Any) -> list[Any]:
    return [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]


def _can_be_sent(value: Any) -> bool:
    try:
        cloudpickle.dumps(value)
    except Exception:
        return False
    return True
