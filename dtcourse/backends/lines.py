"""Which line of the reader's own source is at work: the innermost frame outside torch, Python and the recorder."""

from __future__ import annotations

import os
import sys
import threading
from types import CodeType, FrameType

import torch
from torch.distributed import distributed_c10d as c10d

_MAIN_THREAD = threading.main_thread().ident
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_ROOMS = (
    *("backends", "cluster", "grading"),
    *("parameter_server", "data_parallel", "model_parallel", "pipeline"),  # of these, who calls says more
)
_MACHINERY = (
    *(os.path.join(_OURS, room) + os.sep for room in _ROOMS),
    os.path.join(_OURS, "events.py"),  # the line that marks says more
)
_NOT_THE_READERS = (
    os.path.dirname(torch.__file__) + os.sep,
    os.path.dirname(os.__file__) + os.sep,
    os.path.realpath(os.path.dirname(os.__file__)) + os.sep,
    "<frozen",
)


def is_readers(file: str) -> bool:
    """Whether a source file is the reader's own, or an algorithm, and not torch, Python or the recorder."""
    if file.startswith(_OURS + os.sep):
        return not file.startswith(_MACHINERY)
    return not file.startswith(_NOT_THE_READERS) and f"{os.sep}site-packages{os.sep}" not in file


def innermost(known: dict[CodeType, bool]) -> tuple[CodeType | None, int, bool]:
    """The innermost frame of the reader, and whether torch got here through an object collective.

    In a thread that is not the reader's own (a communication thread): where the main thread is.
    """
    code, line, control = _innermost(sys._getframe(2), known)
    if code is None and threading.get_ident() != _MAIN_THREAD:
        code, line, _ = _innermost(sys._current_frames().get(_MAIN_THREAD), known)
    return code, line, control


def _innermost(frame: FrameType | None, known: dict[CodeType, bool]) -> tuple[CodeType | None, int, bool]:
    control = False
    while frame is not None:
        code = frame.f_code
        if code not in known:
            known[code] = is_readers(code.co_filename)
        if known[code]:
            return code, frame.f_lineno, control
        control = control or ("object" in code.co_name and code.co_filename == c10d.__file__)
        frame = frame.f_back
    return None, 0, control
