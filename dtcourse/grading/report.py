"""`Report`: what `check` says. In a notebook a short table, and a picture of the run in which it went wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from typing import Any

from dtcourse.grading.outcome import Outcome, Result

LINES_SHOWN = 20  # of what the ranks printed

MESSAGE_STYLE = (
    "margin:.6em 0;padding:.6em;border-left:3px solid #b3261e;"
    "white-space:pre-wrap;word-break:normal;overflow-wrap:break-word"  # JupyterLab breaks in mid-word
)
_STYLE = {
    Outcome.PASSED: ("✓", "#00704a"),
    Outcome.FAILED: ("✗", "#b3261e"),
    Outcome.NOT_WRITTEN: ("○", "#6b6b6b"),
    Outcome.MISSING: ("?", "#6b6b6b"),
}


@dataclass(frozen=True)
class Report:
    """The results of one check. `problem` is there if the tests could not be run to their end."""

    exercise: str
    file: str
    results: list[Result]
    seconds: float = 0.0
    problem: str | None = None
    place: Any = field(default=None, repr=False, compare=False)  # a `Progress`, whose output this one takes over

    @property
    def passed(self) -> bool:
        """Every test of the exercise has run and passed."""
        return self.problem is None and bool(self.results) and all(result.passed for result in self.results)

    @property
    def points(self) -> float:
        return sum(result.points for result in self.results)

    @property
    def first_failure(self) -> Result | None:
        """What to look at first: the first test that failed, or else the first that is not written."""
        order = (Outcome.FAILED, Outcome.NOT_WRITTEN)
        found = [r for outcome in order for r in self.results if r.outcome is outcome]
        return found[0] if found else None

    @property
    def picture(self) -> Any:
        """What shows the first failure: the chunk player at its step, if the ranks were given tensors, or the timeline.

        The plans, if it has any. None if nothing happened that could be drawn, or if the message has a drawing.
        """
        first = self.first_failure
        if first is not None and first.plans:
            from dtcourse.views.pipeline import pipeline_plan

            return pipeline_plan(first.plans)
        if first is None or (run := first.run) is None:
            return None
        return run.player(step=first.step) if any(e.arguments for e in run.events) else run.timeline()

    # -- words --------------------------------------------------------------------------------------------------

    @property
    def summary(self) -> str:
        count, all_of_them = sum(r.passed for r in self.results), len(self.results)
        if self.passed:
            return f"{self.exercise}: all {all_of_them} tests passed. Well done."
        if all(r.outcome is Outcome.NOT_WRITTEN for r in self.results):
            return f"{self.exercise}: not written yet. Fill in {self.file}, then check again."
        points, possible = self.points, sum(r.test.points for r in self.results)
        return f"{self.exercise}: {count} of {all_of_them} tests passed, {points:g} of {possible:g} points."

    @property
    def _explanation(self) -> list[str]:
        """The message of the first failure, and what the ranks printed then."""
        lines = [self.problem] if self.problem else []
        if first := self.first_failure:
            lines += first.message.splitlines()
            lines += _printed(first)
        return lines

    def __repr__(self) -> str:
        width = max((len(r.outcome) for r in self.results), default=0)
        rows = [f"  {r.outcome.upper() if not r.passed else r.outcome:<{width}}  {r.test.title}" for r in self.results]
        told = ["", *self._explanation] if self._explanation else []
        return "\n".join([self.summary, *rows, *told])

    def _repr_html_(self) -> str:
        rows = "".join(_row(r) for r in self.results)
        told = "\n".join(self._explanation)
        told = told and f'<pre style="{MESSAGE_STYLE}">{escape(told)}</pre>'
        table = f'<table style="margin:0">{rows}</table>'
        return f'<div class="dtcourse-report"><p><b>{escape(self.summary)}</b></p>{table}{told}</div>'

    def _ipython_display_(self) -> None:
        from IPython.display import display

        content = {"text/plain": repr(self), "text/html": self._repr_html_()}
        if self.place is None or not self.place.take_over(content):
            display(content, raw=True)
        if (picture := self.picture) is not None:
            display(picture)


def _row(result: Result) -> str:
    sign, colour = _STYLE[result.outcome]
    left = "text-align:left"
    outcome = f'<td style="{left};color:{colour};white-space:nowrap">{sign} {escape(result.outcome)}</td>'
    return f'<tr>{outcome}<td style="{left}">{escape(result.test.title)}</td></tr>'


def _printed(result: Result) -> list[str]:
    """What the ranks printed in the run that failed: a reader who prints wants to see it."""
    lines = [f"[rank {rank}] {line}" for rank, text in enumerate(result.printed) for line in text.splitlines()]
    if not lines:
        return []
    more = [f"... and {len(lines) - LINES_SHOWN} more lines"] if len(lines) > LINES_SHOWN else []
    return ["", "It printed:", *lines[:LINES_SHOWN], *more]
