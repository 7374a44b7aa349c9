"""`Activations`: how many activations each rank of a pipeline kept, over time; measured, and as planned."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from dtcourse.run import Run
from dtcourse.views.picture import Picture
from dtcourse.views.tracks import BACKWARD, FORWARD, WEIGHT, Box, chosen, fitted
from dtcourse.views.view import WARN, colour
from dtcourse.views.words import time_unit


class Activations(Picture):
    """Counted from the actions of a step: one more as a forward starts, one less as its backward has ended, or the
    weight half, which needs it as well. All stages of a rank together; tensors are not measured.

    peaks    rank -> the most activations that it kept at once
    planned  rank -> the same in the plan; empty without one
    """

    def __init__(self, run: Run, plan: Any = None, step: int = -1) -> None:
        self._measured, which = chosen(run, step)
        self._plan = None if plan is None else fitted(plan, self._measured, run)
        self.title = f"{run.function or 'a run'}{which and ', '}{which}"
        self.peaks = {rank: peak(lane) for rank, lane in self._measured.lanes.items()}
        self.planned = {rank: peak(lane) for rank, lane in self._plan.lanes.items()} if self._plan else {}

    @property
    def caption(self) -> str:
        return (
            f"Activations kept by {self.title}, at most: {', '.join(f'rank {r} {self._told(r)}' for r in self.peaks)}. "
            "One counts from its forward's start to the end of its backward, or of its weight half."
        )

    def _told(self, rank: int) -> str:
        return f"{self.peaks[rank]}" + (f" (planned {self.planned[rank]})" if rank in self.planned else "")

    def figure(self) -> Figure:
        lanes = self._measured.lanes
        figure = Figure(figsize=(9.6, 1.0 + 0.62 * len(lanes)), layout="constrained")
        every = figure.subplots(len(lanes), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
        plan = self._plan.lanes if self._plan else {}
        span = max(track.span for track in (self._measured, self._plan) if track)
        unit, factor = time_unit(span)
        for axes, (rank, lane) in zip(every, lanes.items(), strict=True):
            _draw(axes, lane, plan.get(rank), factor)
            axes.set_ylabel(f"rank {rank}", rotation=0, ha="right", va="center")
            beyond = rank in self.planned and self.peaks[rank] > self.planned[rank]
            style = {"color": WARN if beyond else "black", "va": "center", "transform": axes.transAxes}
            axes.text(1.01, 0.5, f"at most {self._told(rank)}", **style)
        every[0].set_xlim(0, span / factor)
        every[0].set_ylim(0, 1.15 * max([*self.peaks.values(), *self.planned.values()]))
        every[0].yaxis.set_major_locator(MaxNLocator(nbins=3, integer=True))
        every[-1].set_xlabel(unit)
        if self._plan:
            figure.legend(*every[0].get_legend_handles_labels(), loc="outside upper right", ncols=2, frameon=False)
        figure.suptitle(f"Activations kept by {self.title}", x=0.01, ha="left", fontsize=12, fontweight="bold")
        return figure


def kept(lane: tuple[Box, ...]) -> list[tuple[float, int]]:
    """(time, how many activations from then on), from 0 on."""
    changes = [(0.0, 0)]
    changes += [(box.start, 1) for box in lane if box.action.kind == FORWARD]
    changes += [(box.end, -1) for box in lane if box.action.kind in (BACKWARD, WEIGHT) and not box.pending]
    count, steps = 0, {}
    for time, change in sorted(changes):
        count += change
        steps[time] = count  # what comes as another goes takes its place
    return list(steps.items())


def peak(lane: tuple[Box, ...]) -> int:
    return max(count for _, count in kept(lane))


def _draw(axes: Axes, lane: tuple[Box, ...], planned: tuple[Box, ...] | None, factor: float) -> None:
    times, counts = zip(*kept(lane), strict=True)
    shade = colour(lane[0].rank)
    end = [time / factor for time in times]
    axes.fill_between(end, counts, step="post", color=shade, alpha=0.45, linewidth=0)
    axes.step(end, counts, where="post", color=shade, linewidth=1.5, label="measured")
    if planned:
        times, counts = zip(*kept(planned), strict=True)
        look = {"color": "black", "linestyle": (0, (4, 2)), "linewidth": 1.1, "label": "planned"}
        axes.step([time / factor for time in times], counts, where="post", **look)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
