"""`Failure`: an exception of a rank, in a form that can be sent to the reader's process."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from types import TracebackType


@dataclass(frozen=True)
class Failure:
    """`disagree`: the two sides, (rank, row) each, of ranks that do not agree. `died`: the rank that was needed."""

    kind: str  # the class of the exception
    message: str
    frames: list[tuple[str, int, str]]  # file, line, function; the innermost last
    text: str  # as Python prints it
    disagree: tuple[tuple[int, int], tuple[int, int]] | None = None
    died: int | None = None


def failure_of(problem: BaseException, machinery: str) -> Failure:
    """`machinery`: the file whose frames come before those of the function."""
    trace = _without(machinery, problem.__traceback__)
    return Failure(
        kind=type(problem).__name__,
        message=_said(problem),
        frames=[(f.filename, f.lineno or 0, f.name) for f in traceback.extract_tb(trace)],
        text="".join(traceback.format_exception(type(problem), problem, trace)),
    )


def _said(problem: BaseException) -> str:
    try:
        return str(problem)
    except Exception as another:
        return f"(its __str__ raised {type(another).__name__})"


def _without(machinery: str, trace: TracebackType | None) -> TracebackType | None:
    while trace and trace.tb_frame.f_code.co_filename == machinery:
        trace = trace.tb_next
    return trace
