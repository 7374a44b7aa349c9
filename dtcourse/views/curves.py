"""`curves`: what was marked during training, against steps and against seconds, for several runs on one plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from dtcourse.run import Run
from dtcourse.views.picture import Picture
from dtcourse.views.series import Curve, curve, series, smoothed

# Okabe and Ito's colours, darkest first: yellow would be lost as a line. Dashes and end marks tell them apart as well.
LOOKS = (
    ("#0072B2", "-", "o"),
    ("#D55E00", "--", "s"),
    ("#009E73", "-.", "^"),
    ("#CC79A7", (0, (5, 1)), "D"),
    ("#000000", ":", "v"),
    ("#E69F00", (0, (3, 1, 1, 1)), "P"),
    ("#56B4E9", (0, (1, 1)), "X"),
)
WIDE = 100  # largest over smallest value from which the scale is logarithmic
PARTS = 20  # unless told, the last 1/20 of a run's marks is averaged


def curves(runs: Run | Mapping[str, Run | Sequence[Run]], what: str = "loss", smooth: int | None = None) -> Curves:
    """Compare training runs: `curves({"synchronous": run, "asynchronous": [seed_0, seed_1, seed_2]})`.

    runs    name -> a run, or several that differ in their seed: a line with their mean, and a band from the
            lowest to the highest; it ends with the run that ends first. A run alone needs no name.
    what    the marks to draw: `mark("loss", value=..., step=..., version=...)`. The left picture counts versions
            (updates of the parameters) where they are marked, otherwise steps. Seconds count from the first mark called
            "begin", which a parameter server makes as the first worker begins; without one, from the run's first event.
    smooth  each point is the mean of so many marks, the last ones up to there; a twentieth of them by default

    Raises ValueError if a run has no such marks, if they have no numbers, if there are no runs, or for smooth < 1;
    TypeError for runs without names.
    """
    if not isinstance(runs, (Run, Mapping)):
        raise TypeError(f'runs have names: curves({{"one": run_1, "another": run_2}}), not a {type(runs).__name__}')
    if smooth is not None and (not isinstance(smooth, int) or smooth < 1):
        raise ValueError(f"smooth is how many marks a point is the mean of, 1 or more, not {smooth!r}")
    return Curves(runs, what, smooth)


class Curves(Picture):
    """by_steps, by_seconds   a `Curve` for each name, as drawn
    smooth                 how many marks a point is the mean of
    """

    def __init__(self, runs: Run | Mapping[str, Run | Sequence[Run]], what: str, smooth: int | None) -> None:
        named = {runs.function or "run": runs} if isinstance(runs, Run) else runs
        found = {
            name: [series(run, what) for run in ([some] if isinstance(some, Run) else some)]
            for name, some in named.items()
        }
        if not found or not all(found.values()):
            raise ValueError('there is no run to draw: curves({"name": run}), or a list of runs for each name')
        every = [one for some in found.values() for one in some]
        self.what = what
        self.smooth = smooth or max(min(len(one.values) for one in every) // PARTS, 1)
        self.by_steps = [
            curve(name, [smoothed(one.steps, one.values, self.smooth) for one in some]) for name, some in found.items()
        ]
        self.by_seconds = [
            curve(name, [smoothed(one.seconds, one.values, self.smooth) for one in some])
            for name, some in found.items()
        ]
        counted = {one.counter for one in every}
        self.steps = "updates" if counted == {"version"} else "steps" if counted == {"step"} else "updates or steps"
        self._lost = sum(one.lost for one in every)

    @property
    def caption(self) -> str:
        ends = "; ".join(map(self._end, self.by_steps, self.by_seconds))
        text = f"{self.what} against {self.steps} and against seconds. {ends}. {self.how}"
        return text[0].upper() + text[1:]

    @property
    def how(self) -> str:
        """What was done to the marks."""
        text = f"Each point: mean of the last {self.smooth} marks." if self.smooth > 1 else "Each mark as it is."
        if any(one.runs > 1 for one in self.by_steps):
            text += " Line: mean of the runs; band: lowest to highest."
        return text + (f" Left out: {self._lost:,} marks that are no finite number." if self._lost else "")

    def _end(self, steps: Curve, seconds: Curve) -> str:
        many = f" ({steps.runs} runs)" if steps.runs > 1 else ""
        last = steps.middle[-1]
        return f"{steps.name}{many}: {last:.3g} after {steps.x[-1]:,.0f} {self.steps}, {seconds.x[-1]:.3g} s"

    def figure(self) -> Figure:
        figure = Figure(figsize=(9.6, 3.8), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True)
        for axes, found, name in ((left, self.by_steps, self.steps), (right, self.by_seconds, "seconds")):
            for i, one in enumerate(found):
                _draw(axes, one, *LOOKS[i % len(LOOKS)])
            axes.set_xlabel(name)
            axes.set_xlim(left=0)
            axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=name != "seconds"))
            axes.grid(axis="y", color="#dddddd", linewidth=0.6)
            axes.spines[["top", "right"]].set_visible(False)
        low = min(one.low.min() for one in self.by_steps)
        wide = low > 0 and max(one.high.max() for one in self.by_steps) / low > WIDE
        left.set_yscale("log" if wide else "linear")
        left.set_ylabel(f"{self.what} (logarithmic)" if wide else self.what)
        _names(right, self.by_seconds)
        names = f"{self.what} against {self.steps} and against seconds"
        figure.suptitle(names, x=0.01, ha="left", fontsize=11, fontweight="bold")
        figure.supxlabel(self.how, x=0.01, ha="left", fontsize=8, color="#444444")
        return figure


def _draw(axes: Axes, one: Curve, shade: str, dashes: object, mark: str) -> None:
    if one.runs > 1:
        axes.fill_between(one.x, one.low, one.high, color=shade, alpha=0.25, linewidth=0)
    axes.plot(one.x, one.middle, color=shade, linestyle=dashes, linewidth=1.8, label=one.name)
    axes.plot(one.x[-1:], one.middle[-1:], color=shade, marker=mark, markersize=7, markeredgecolor="white", zorder=4)


def _names(axes: Axes, found: Sequence[Curve]) -> None:
    """Samples of the lines with their names at the right edge, each as near to its line's end as the others let it."""
    ends = [(one.x[-1], one.middle[-1]) for one in found]
    heights = (axes.transData + axes.transAxes.inverted()).transform(ends)[:, 1]
    for i, (one, place) in enumerate(zip(found, _apart(heights, 0.09), strict=True)):
        shade, dashes, mark = LOOKS[i % len(LOOKS)]
        style = {"color": shade, "transform": axes.transAxes, "clip_on": False}
        axes.plot([1.03, 1.12], [place, place], linestyle=dashes, linewidth=1.8, **style)
        axes.plot([1.12], [place], marker=mark, markersize=7, markeredgecolor="white", **style)
        axes.text(1.15, place, one.name, va="center", fontweight="bold", transform=axes.transAxes)


def _apart(heights: np.ndarray, gap: float) -> list[float]:
    """The same order, at least `gap` between neighbours, within 0 to 1 if there is room."""
    order = np.argsort(heights, kind="stable")
    places = np.clip(heights[order], 0, 1)
    for i in range(1, len(places)):
        places[i] = max(places[i], places[i - 1] + gap)
    places -= max(places[-1] - 1, 0)
    for i in range(len(places) - 2, -1, -1):
        places[i] = min(places[i], places[i + 1] - gap)
    back = np.empty_like(places)
    back[order] = places
    return back.tolist()
