"""A jailed rank: does what the grader asks, one request after the other, until the grader is gone.

Forked from the keeper, and already in its jail when `serve` is called. It takes pickled requests from the grader; what
goes out is plain data. Of the course it has no more than what is loaded here and what comes along with a request.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib.abc
import importlib.util
import json
import os
import pickle
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import dtcourse.grading.loading  # noqa: F401 - what requests call
from dtcourse import events
from dtcourse.backends.rows import number
from dtcourse.failures import failure_of
from dtcourse.grading.sandbox.grader import Grader
from dtcourse.grading.sandbox.group import NAME, Asked, RelayedGroup
from dtcourse.grading.sandbox.wire import Frame, NotPlain, encode, pack, plain

_LONGEST = 20_000  # characters of what is said of a failure
_MOST_FRAMES = 60
_COURSE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
_HIDDEN = "{} is not there when an exercise is graded: write it yourself, with torch and torch.distributed"


def serve(rank: int, descriptor: int, output: int, stack: int) -> None:
    """The life of a rank. `output` takes what it prints, `stack` where it is when time is up."""
    _settle(rank, output)
    grader, course, where = Grader(descriptor), _Course(), os.fdopen(stack, "wb", buffering=0)
    sys.meta_path.insert(0, course)
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            request = grader.request()
            course.learn(request.words.get("course"))
            _carry_out(request, rank, grader, where)


def warm_up() -> None:
    """In the keeper: load, once for all ranks, what torch loads when it is first used.

    And let it look at the processor, which it does where it finds /proc and not in a jail: it would compute otherwise.
    """
    import torch._dynamo  # the first optimizer of a process loads it, for seconds

    torch.set_num_threads(1)
    layer = torch.nn.Linear(2, 2)
    torch.nn.functional.mse_loss(layer(torch.ones(2, 2)), torch.zeros(2, 2)).backward()
    layer(torch.ones(2, 2)).backward(torch.ones(2, 2))  # with a gradient it loads 500 modules, once
    torch.randn(2, generator=torch.Generator().manual_seed(0)) @ torch.linalg.inv(torch.eye(2))
    for _ in range(2):
        _join(Asked(None, []), 0, 1)  # type: ignore[arg-type]
        dist.destroy_process_group()


def _settle(rank: int, output: int) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)  # what all ranks have from the keeper has flags that each of them could set and read
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(nothing)
    os.close(output)
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        stream = os.fdopen(descriptor, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
        setattr(sys, name, stream)
    with contextlib.suppress(OSError):
        os.chdir("/tmp")
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != _COURSE]
    sys.dont_write_bytecode = True
    random.seed()
    np.random.seed()
    torch.set_num_threads(1)


def _carry_out(request: Frame, rank: int, grader: Grader, where: Any) -> None:
    faulthandler.dump_traceback_later(request.words["patience"], file=where)
    streams = sys.stdout, sys.stderr
    try:
        function, args, kwargs = pickle.loads(request.body)
        asked = Asked(grader, plain([*args, *kwargs.values()]))
        _join(asked, rank, request.words["world"])
        events.record_into(_Sink(asked))
        answer = _answer(function(*args, **kwargs), asked.watched)
    except BaseException as problem:  # SystemExit and KeyboardInterrupt too: the rank lives on
        answer = pack(_failure(problem))
    events.record_into(None)
    faulthandler.cancel_dump_traceback_later()
    for stream in (*streams, sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    sys.stdout, sys.stderr = streams
    with contextlib.suppress(Exception):
        dist.destroy_process_group()
    grader.send(answer)


def _join(asked: Asked, rank: int, world: int) -> None:
    def make(store: dist.Store, rank: int, size: int, timeout: Any) -> dist.ProcessGroup:
        return RelayedGroup(asked, 0, "0", rank, tuple(range(size)))

    os.environ["WORLD_SIZE"] = str(world)
    dist.Backend.register_backend(NAME, make, devices=["cpu"])
    dist.init_process_group(NAME, store=dist.HashStore(), rank=rank, world_size=world)


def _answer(value: Any, watched: list[torch.Tensor]) -> bytes:
    """The frame with what the function returned, and how its arguments stand."""
    tensors: list[torch.Tensor] = []
    try:
        with torch._C.DisableTorchFunctionSubclass():  # as they are, whatever they say of themselves
            words = {"do": "return", "value": encode(value, tensors), "arguments": len(watched)}
            return pack(words, [*tensors, *watched])
    except (NotPlain, RecursionError) as problem:
        raise CannotBeReturned(
            f"the function returned a {type(value).__name__}, which cannot be sent back ({problem}). "
            "Return tensors, numbers, strings, or lists and dicts of them"
        ) from None


class CannotBeReturned(TypeError):
    """The result of a function is no plain data."""


def _failure(problem: BaseException) -> dict[str, Any]:
    failure = failure_of(problem, machinery=__file__)
    return {
        "do": "failure",
        "kind": failure.kind,
        "message": failure.message[:_LONGEST],
        "frames": failure.frames[-_MOST_FRAMES:],
        "text": failure.text[-_LONGEST:],
    }


class _Sink:
    """Regions and marks of the run go to the grader."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked

    @contextmanager
    def region(self, name: str, labels: dict[str, Any]) -> Iterator[None]:
        self._tell("region", name, labels)
        try:
            yield
        finally:
            self._asked.grader.tell({"do": "end"})

    def mark(self, name: str, values: dict[str, Any]) -> None:
        self._tell("mark", name, values)

    def _tell(self, what: str, name: str, labels: dict[str, Any]) -> None:
        known = json.loads(json.dumps(labels, default=number))
        claims = self._asked.claims()
        self._asked.grader.tell({"do": what, "name": name, "labels": known, "line": claims["line"]})


class _Course(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds modules of the course in what has come along with requests, and nowhere else."""

    def __init__(self) -> None:
        self.sources: dict[str, str] = {}

    def learn(self, sources: dict[str, str] | None) -> None:
        """From now on these, in place of what was there; None: what was there."""
        if sources is not None:
            for name in self.sources:
                sys.modules.pop(name, None)
            self.sources = sources

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if not name.startswith("dtcourse."):
            return None
        if name not in self.sources:
            raise ModuleNotFoundError(_HIDDEN.format(name), name=name)
        package = any(other.startswith(f"{name}.") for other in self.sources)
        return importlib.util.spec_from_loader(name, self, is_package=package)

    def exec_module(self, module: ModuleType) -> None:
        file = os.path.join(_COURSE, *module.__name__.split("."))
        file = os.path.join(file, "__init__.py") if hasattr(module, "__path__") else f"{file}.py"
        exec(compile(self.sources[module.__name__], file, "exec", dont_inherit=True), module.__dict__)
