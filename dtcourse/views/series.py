"""What was marked, as curves: smoothed, against steps or seconds; several runs become one curve with its spread.

Pure functions of the runs; drawing is left to curves.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dtcourse.run import Run
from dtcourse.views.marks import numbered

POINTS = 200  # at which several runs are compared

Array = np.ndarray


@dataclass(frozen=True)
class Series:
    """The marks of one run. All arrays have shape (marks,), in order of time; what is not finite is left out."""

    steps: Array
    seconds: Array  # since the training began
    values: Array
    counter: str  # the label that `steps` are from: "version" or "step"
    lost: int  # marks whose value is infinite or no number


@dataclass(frozen=True)
class Curve:
    """Runs of one name on one axis: `middle` is their mean, `low` and `high` their range. Arrays of shape (points,)."""

    name: str
    x: Array
    middle: Array
    low: Array
    high: Array
    runs: int


def series(run: Run, what: str) -> Series:
    """The marks called `what`. Steps are their `version` where all have one, otherwise their `step`.

    Seconds count from the first mark called "begin", or without one from the run's first event: what the ranks load and
    build before they begin is not training.
    """
    marks = run.marks(what)
    counter = "version" if marks and all("version" in e.labels for e in marks) else "step"
    marks = numbered(run, what, ("value", counter), "in each step, on each rank that has one")
    values = np.array([e.labels["value"] for e in marks], dtype=float)
    steps = np.array([e.labels[counter] for e in marks], dtype=float)
    begin = min((e.posted for e in run.marks("begin")), default=run.span[0])
    seconds = np.array([e.posted - begin for e in marks]) / 1e9
    finite = np.isfinite(values)
    if not finite.any():
        raise ValueError(f'none of the {len(values)} marks "{what}" of {run.function or "this run"} has a finite value')
    return Series(steps[finite], seconds[finite], values[finite], counter, int((~finite).sum()))


def curve(name: str, lines: Sequence[tuple[Array, Array]]) -> Curve:
    """One line as it is; of several their mean and range, where all of them have points."""
    if len(lines) == 1:
        ((x, y),) = lines
        return Curve(name, x, y, y, y, 1)
    first, last = max(x[0] for x, _ in lines), min(x[-1] for x, _ in lines)
    grid = np.linspace(first, last, POINTS) if last > first else np.array([first])
    all_y = np.stack([np.interp(grid, x, y) for x, y in lines])  # (runs, points)
    return Curve(name, grid, all_y.mean(0), all_y.min(0), all_y.max(0), len(lines))


def smoothed(x: Array, y: Array, window: int) -> tuple[Array, Array]:
    """The mean of the last `window` values up to each x (at the beginning of those there are); one value for each x."""
    order = np.argsort(x, kind="stable")
    sums = np.concatenate([[0.0], np.cumsum(y[order])])
    ends = np.arange(1, len(y) + 1)
    starts = np.maximum(ends - window, 0)
    means = (sums[ends] - sums[starts]) / (ends - starts)
    places, which = np.unique(x[order], return_inverse=True)
    return places, np.bincount(which, weights=means) / np.bincount(which)
