"""`ask`: a question before a run. The reader notes a prediction; a later cell holds what really came beside it.

It never waits: a notebook that is run from top to bottom, or without a browser, goes on without predictions. The
answer is not given with the question, for it would stand in the cell that asks: it comes from the run.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from typing import Any

import ipywidgets as widgets
from IPython.display import display

_RIGHT, _OTHER, _PLAIN = "#009E73", "#D55E00", "#8C8C8C"  # the colours of the views


class Answer:
    """What really came, and what had been predicted. The last line of a cell shows it."""

    def __init__(
        self, question: str, value: Any, explain: str, predicted: str, within: float, known: bool = False
    ) -> None:
        self.question, self.explain, self.predicted, self.within = question, explain, predicted, within
        self.known = known  # written down beforehand: no run has said it
        self.value = value if isinstance(value, str) else value.item() if hasattr(value, "item") else value

    @property
    def right(self) -> bool | None:
        """Whether the prediction was right; None if there was none."""
        return _same(self.predicted, self.value, self.within) if self.predicted else None

    @property
    def verdict(self) -> str:
        """The first sentence: what it is, and what the reader had said."""
        value = f"{self.value:,}" if isinstance(self.value, (int, float)) else self.value
        said = "" if self.right is None or self.predicted == value else f" You said {self.predicted}."
        whence = "The answer" if self.known else "The run says"
        return f"{whence}: {value}.{said}{' Well predicted.' if self.right else ''}"

    def __repr__(self) -> str:
        return f"{self.question}\n{self.verdict} {self.explain}".rstrip()

    def _repr_html_(self) -> str:
        colour = {True: _RIGHT, False: _OTHER, None: _PLAIN}[self.right]
        return (
            f'<div style="border-left: 4px solid {colour}; padding: 2px 12px">'
            f"<em>{_html(self.question)}</em><br><b>{_html(self.verdict)}</b> {_html(self.explain)}</div>"
        )


class Question(widgets.VBox):
    """A question with a field, or with choices, for the reader's prediction."""

    def __init__(self, question: str, choices: Sequence[str] = (), placeholder: str = "") -> None:
        self.question, self.choices = question, tuple(choices)
        self._answer: Answer | None = None
        self._said = widgets.HTML()
        if choices:
            self._field = widgets.RadioButtons(options=self.choices, value=None, layout={"width": "auto"})
        else:
            self._field = widgets.Text(placeholder=placeholder or "a number, then Enter", continuous_update=False)
        self._field.observe(self._noted, "value")
        self._field.description_allow_html = False
        text = widgets.HTML(f'<div style="font-size: 1.05em"><b>Your prediction:</b> {_html(question)}</div>')
        super().__init__([text, self._field, self._said], layout={"padding": "4px 12px"})

    @property
    def predicted(self) -> str:
        """What the reader has entered; empty if nothing."""
        return (self._field.value or "").strip()

    @predicted.setter
    def predicted(self, value: object) -> None:
        self._field.value = str(value)

    def answer(self, value: Any, explain: str = "", within: float = 0.01) -> Answer:
        """What really came: a number (right if predicted `within` this part of it), or one of the choices.

        A choice given by its number, from 1, is an answer that was written down beforehand: a run gives words.
        """
        known = bool(self.choices) and isinstance(value, int)
        if known:
            value = self.choices[value - 1]
        self._answer = Answer(self.question, value, explain, self.predicted, within, known)
        return self._answer

    def _noted(self, change: dict[str, Any]) -> None:
        if not self.predicted:
            self._said.value = ""
        elif not self.choices and _number(self.predicted) is None:
            self._said.value = "A number, please."
        elif self._answer is None:
            self._said.value = "Noted. Now run the next cells."
        else:  # they have been run already
            self._answer.predicted = self.predicted
            self._said.value = _html(self._answer.verdict)

    def __repr__(self) -> str:
        return "\n".join([f"Your prediction: {self.question}", *(f"  ( ) {choice}" for choice in self.choices)])

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        return {**super()._repr_mimebundle_(**kwargs), "text/plain": repr(self)}


def ask(text: str, choices: Sequence[str] = (), placeholder: str = "") -> Question:
    """Show a question with a field for the prediction: a number, or one of `choices`. `backticks` show code.

    q = ask("How many bytes does rank 0 receive?")
    q.answer(run.traffic_matrix()[:, 0].sum(), "Why so.")   the last line of a later cell, which shows it
    """
    question = Question(text, choices, placeholder)
    display(question)
    return question


def _same(predicted: str, value: Any, within: float) -> bool:
    if isinstance(value, str):
        return predicted.casefold() == value.casefold()
    number = _number(predicted)
    return number is not None and abs(number - value) <= within * abs(value)


def _number(text: str) -> float | None:
    """The number in "about 12,000 bytes"."""
    found = re.search(r"[-+]?\d*\.?\d+(?:e[-+]?\d+)?", text.replace(",", "").replace("_", "").replace(" ", ""), re.I)
    return float(found.group()) if found else None


def _html(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))
