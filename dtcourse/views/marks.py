"""Marks as numbers, and what to say where they are missing. Knows only a `Run`."""

from __future__ import annotations

from numbers import Real

from dtcourse.events import Event
from dtcourse.run import Run
from dtcourse.views import words


def numbered(run: Run, name: str, labels: tuple[str, ...], where: str) -> list[Event]:
    """The marks called `name`, in order of time; each has a number under each of `labels`.

    `where` says who should make the mark, and when. Raises ValueError, with the line to write, if there is no such
    mark, or if one lacks a label.
    """
    found = sorted(run.marks(name), key=lambda e: e.posted)
    recipe = f"mark({', '.join([repr(name), *(f'{label}=...' for label in labels)])})".replace("'", '"')
    if not found:
        others = ", ".join(sorted({e.op for e in run.events if e.kind == "mark"})) or "none"
        raise ValueError(
            f'{run.function or "this run"} has no marks called "{name}" (marks it has: {others}). '
            f"Write {recipe} {where}, after `from dtcourse import mark`."
        )
    for e in found:
        if unnumbered := [label for label in labels if not isinstance(e.labels.get(label), Real)]:
            has = ", ".join(f"{key}={value!r}" for key, value in e.labels.items()) or "nothing"
            place = f", {words.place(e.line)}" if e.line else ""
            raise ValueError(
                f'a mark "{name}" of rank {e.rank}{place} has {has}; a number is needed as {", ".join(unnumbered)}. '
                f"Write {recipe}."
            )
    return found
