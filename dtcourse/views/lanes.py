"""Lanes of boxes on one time axis, as a widget and as a picture: the pipeline chart, the overlap view.

Knows neither of them: a chart is data that they make, panels of lanes of boxes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from dtcourse.views.view import WARN, ink_on
from dtcourse.views.words import time_unit

SCRIPTS = ("common.js", "axis.js", "lanes.js")
IDLE = {"facecolor": "#f4f4f4", "edgecolor": "#c9ccd2", "hatch": "////", "linewidth": 0.0}
WIDE = 9.6  # inches
NARROW = 1 / 250  # of the axis
SMALLEST, LARGEST = 4.5, 10  # points, of the text in a box


@dataclass(frozen=True, slots=True)
class Shape:
    """A box of a lane.

    group    boxes of one group stay bright together when one of them is pointed at
    told     what is said of it then
    pending  had not ended when the record ended
    """

    kind: str
    group: int | str
    start: float
    end: float
    label: str
    fill: str
    told: str
    pending: bool = False


@dataclass(frozen=True, slots=True)
class Lane:
    """note  beside the lane; in the widget the rank is beside it as well, in a circle for all of its lanes"""

    rank: int
    name: str  # beside the lane in the picture
    note: str
    shapes: tuple[Shape, ...]


@dataclass(frozen=True)
class Panel:
    """Lanes under one title; what no box covers, up to `span`, is idle."""

    name: str
    title: str
    span: float
    lanes: tuple[Lane, ...]


@dataclass(frozen=True)
class Chart:
    """legend  (name, colour) of each kind of box
    letters    what the letters in the boxes mean; may be empty
    axis       what times are in; empty for microseconds
    side       room for the lanes' notes in the widget, in pixels
    """

    title: str
    head: str
    caption: str
    foot: str
    legend: tuple[tuple[str, str], ...]
    panels: tuple[Panel, ...]
    letters: str = ""
    axis: str = ""
    side: int = 104

    @cached_property
    def span(self) -> float:
        return max(panel.span for panel in self.panels)

    @property
    def shapes(self) -> Iterator[Shape]:
        return (shape for panel in self.panels for lane in panel.lanes for shape in lane.shapes)


def chart_data(chart: Chart) -> dict[str, Any]:
    """The chart as the plain data that lanes.js reads."""
    return {
        "title": chart.title,
        "head": chart.head,
        "caption": chart.caption,
        "foot": chart.foot,
        "timed": not chart.axis,
        "span": chart.span,
        "side": chart.side,
        "letters": chart.letters,
        "legend": chart.legend,
        "panels": [
            {
                "name": panel.name,
                "title": panel.title,
                "span": panel.span,
                "lanes": [_lane_data(lane) for lane in panel.lanes],
            }
            for panel in chart.panels
        ],
    }


def _lane_data(lane: Lane) -> dict[str, Any]:
    boxes = [
        [s.kind, s.group, round(s.start, 4), round(s.end, 4), s.label, s.fill, int(s.pending), s.told]
        for s in lane.shapes
    ]
    return {"rank": lane.rank, "note": lane.note, "boxes": boxes}


# -- as a picture ------------------------------------------------------------------------------------------------------


def chart_figure(chart: Chart) -> Figure:
    lanes = sum(len(panel.lanes) for panel in chart.panels)
    high = 0.34 if lanes <= 16 else 0.27
    figure = Figure(figsize=(WIDE, 1.0 + high * lanes + 0.35 * len(chart.panels)), layout="constrained")
    span = chart.span or 1.0
    unit, factor = (chart.axis, 1) if chart.axis else time_unit(span)
    heights = [len(panel.lanes) + 0.2 for panel in chart.panels]
    every = figure.subplots(len(chart.panels), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for axes, panel in zip(every, chart.panels, strict=True):
        _draw(axes, panel, factor, span)
        axes.set_xlim(0, 1.002 * span / factor)
    every[-1].set_xlabel(unit)
    handles = [Patch(facecolor=fill, edgecolor="#333333", label=name) for name, fill in chart.legend]
    handles.append(Patch(**IDLE, label="idle"))
    if chart.letters:
        handles.append(Patch(alpha=0, label=chart.letters))
    if any(shape.pending for shape in chart.shapes):
        handles.append(Patch(facecolor="white", edgecolor=WARN, hatch="xxxx", label="never ended"))
    figure.legend(handles=handles, loc="outside upper right", ncols=len(handles), fontsize=9, frameon=False)
    figure.suptitle(chart.title, x=0.01, ha="left", fontsize=12, fontweight="bold")
    return figure


def _draw(axes: Axes, panel: Panel, factor: float, span: float) -> None:
    rows = range(len(panel.lanes))
    axes.add_collection(PolyCollection([_corners(0, panel.span / factor, row) for row in rows], **IDLE))
    looks: dict[tuple[str, bool], list[list[tuple[float, float]]]] = {}
    for row, lane in enumerate(panel.lanes):
        for shape in lane.shapes:
            corners = _corners(shape.start / factor, shape.end / factor, row)
            looks.setdefault((shape.fill, shape.pending), []).append(corners)
    count = sum(map(len, looks.values()))
    narrow = panel.span * len(rows) < span * NARROW * count  # edges would be all that is seen
    for (colour, pending), boxes in looks.items():
        look = {"hatch": "xxxx", "edgecolor": WARN} if pending else {"edgecolor": "#333333"}
        look["linewidth"] = 0.0 if narrow and not pending else 0.6
        axes.add_collection(PolyCollection(boxes, facecolor="white" if pending else colour, **look))
    _labels(axes, panel, factor, span)
    axes.set_ylim(len(rows) - 0.02, -0.02)
    axes.set_yticks([row + 0.46 for row in rows], [lane.name for lane in panel.lanes])
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_title(panel.title, loc="left", fontsize=11, fontweight="bold", pad=4)


def _corners(start: float, end: float, row: float) -> list[tuple[float, float]]:
    return [(start, row), (end, row), (end, row + 0.92), (start, row + 0.92)]


def _labels(axes: Axes, panel: Panel, factor: float, span: float) -> None:
    """The label of each box that has room for it; in one size a kind, for which most of those have room."""
    points = 72 * (WIDE - 1.3) / span
    room: dict[str, list[float]] = {}
    for shape in (shape for lane in panel.lanes for shape in lane.shapes if shape.label):
        fits = points * (shape.end - shape.start) / (0.62 * len(shape.label) + 0.2)
        if fits >= SMALLEST:
            room.setdefault(shape.kind, []).append(fits)
    sizes = {kind: min(sorted(fits)[len(fits) // 8], LARGEST) for kind, fits in room.items()}
    for row, lane in enumerate(panel.lanes):
        for shape in lane.shapes:
            text, size = shape.label, sizes.get(shape.kind, SMALLEST)
            if not text or points * (shape.end - shape.start) < (0.62 * len(text) + 0.1) * size:
                continue
            middle = (shape.start + shape.end) / 2 / factor
            style = {"ha": "center", "va": "center_baseline", "fontsize": size, "clip_on": True, "in_layout": False}
            axes.text(middle, row + 0.47, text, color=ink_on("#ffffff" if shape.pending else shape.fill), **style)
