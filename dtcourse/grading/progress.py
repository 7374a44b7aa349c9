"""How far a check is, while it runs: an output of the notebook that the report then takes over, or a line."""

from __future__ import annotations

import os
import shutil
import sys
from html import escape
from typing import Any, Protocol

from dtcourse.grading.outcome import Outcome, Result
from dtcourse.grading.report import MESSAGE_STYLE


class Progress(Protocol):
    """Is told the results so far, those that are still to come as missing."""

    def show(self, exercise: str, results: list[Result]) -> None: ...

    def end(self) -> None:
        """Leave nothing behind."""

    def take_over(self, content: dict[str, str]) -> bool:
        """Put this where the progress was, if there is such a place, in the cell that runs now."""


def progress() -> Progress:
    """What fits the place where `check` was called."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    if shell is not None and hasattr(shell, "kernel"):
        return InNotebook(shell)
    return InTerminal() if sys.stderr.isatty() else Silent()


def words(exercise: str, results: list[Result]) -> str:
    """ "ring: 3 of 10 tests have run, 1 failed"."""
    there = [r for r in results if r.outcome is not Outcome.MISSING]
    if not there:
        return f"{exercise}: the ranks are starting ..."
    failed = sum(not r.passed for r in there)
    also = f", {failed} did not pass" if failed else ""
    return f"{exercise}: {len(there)} of {len(results)} tests have run{also} ..."


def first_message(results: list[Result]) -> str:
    return next((r.message for r in results if r.message), "")


class Silent:
    def show(self, exercise: str, results: list[Result]) -> None:
        pass

    def end(self) -> None:
        pass

    def take_over(self, content: dict[str, str]) -> bool:
        return False


class InNotebook:
    """One output, which is updated, and empty in the end, until the report takes it."""

    def __init__(self, shell: Any) -> None:
        self._shell, self._cell = shell, shell.execution_count
        self._handle: Any = None

    def show(self, exercise: str, results: list[Result]) -> None:
        from IPython.display import display

        text, message = words(exercise, results), first_message(results)
        told = f'<pre style="{MESSAGE_STYLE}">{escape(message)}</pre>' if message else ""
        self._put(display, {"text/plain": "\n\n".join(filter(None, [text, message])),
                            "text/html": f"<p>{escape(text)}</p>{told}"})  # fmt: skip

    def end(self) -> None:
        if self._handle is not None:
            self._handle.update({"text/plain": "", "text/html": ""}, raw=True)

    def take_over(self, content: dict[str, str]) -> bool:
        if self._handle is None or self._shell.execution_count != self._cell:
            return False
        self._handle.update(content, raw=True)
        self._handle = None
        return True

    def _put(self, display: Any, content: dict[str, str]) -> None:
        if self._handle is None:
            self._handle = display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)


class InTerminal:
    """One line on stderr, which is overwritten; the report says the message in full."""

    def show(self, exercise: str, results: list[Result]) -> None:
        message = first_message(results).partition("\n")[0]
        text = " ".join(filter(None, [words(exercise, results), message]))
        width = shutil.get_terminal_size().columns - 1
        self._write("\r\x1b[K" + (text if len(text) <= width else text[: width - 3] + "..."))

    def end(self) -> None:
        self._write("\r\x1b[K")

    def take_over(self, content: dict[str, str]) -> bool:
        return False

    def _write(self, text: str) -> None:
        if os.environ.get("TERM") != "dumb":
            sys.stderr.write(text)
            sys.stderr.flush()
