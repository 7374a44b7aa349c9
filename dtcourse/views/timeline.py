"""`Timeline`: a lane per rank, with what it worked on, what it sent and received, and where it waited."""

from __future__ import annotations

import math
from collections import defaultdict

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from dtcourse.events import COLLECTIVE, MARK, RECV, REGION, RETURN, SEND
from dtcourse.run import Run
from dtcourse.views.bars import COMPUTE, WAIT, Bar, Bars, bars, bars_data, shares
from dtcourse.views.view import WARN, View, script
from dtcourse.views.words import duration, time_unit

SCRIPTS = ("common.js", "axis.js", "timeline.js")
FILLS = {
    COMPUTE: "#56B4E9",
    WAIT: "#f2f2f2",
    SEND: "#0072B2",
    RECV: "#E69F00",
    COLLECTIVE: "#CC79A7",
}
PLAIN = "#e3e6eb"  # a region, where there is nothing to tell it from
TINTS = ("#d3d7de", "#f9dc9d", "#b9d3ec", "#b5dfcd", "#edcfe0", "#f5f1a8", "#f2c1a3")  # of the regions, by name
NAMES = {
    REGION: "region",
    COMPUTE: "computes",
    WAIT: "waits",
    SEND: "sends",
    RECV: "receives",
    COLLECTIVE: "collective",
}
ARROW = "#444444"
STUCK = "xxxx"  # how what never ended is hatched
MARKED = {"marker": "d", "s": 22, "edgecolor": "white", "linewidths": 0.5}
SMALL = {"marker": "d", "s": 5, "linewidths": 0}  # marks that would cover each other
MANY_MARKS = 150
NARROW = 0.004  # of the span
MOST_ARROWS = 120
MOST_HATCHED = 800  # hatching is slow


class Timeline(View):
    """Draws any run, watched or not."""

    _esm = script(*SCRIPTS)

    def __init__(self, run: Run) -> None:
        self._run, self._bars = run, bars(run)
        super().__init__(data=bars_data(self._bars, run.function))

    def figure(self) -> Figure:
        return _figure(self._bars, self._run.function)

    @property
    def caption(self) -> str:
        named = [
            f"rank {r}" + (f" ({role})" if (role := self._bars.roles.get(r)) else "") for r in range(self._bars.world)
        ]
        waited = ", ".join(f"{name} {share:.0%}" for name, share in zip(named, shares(self._bars), strict=True))
        name = self._run.function or "a run"
        pending = sum(bar.pending for bar in self._bars.bars if bar.kind in (SEND, RECV, COLLECTIVE))
        stuck = f" {pending} operations never ended." if pending else ""
        return f"Timeline of {name}, {duration(self._bars.span)}. Time spent waiting: {waited}.{stuck}"


def _figure(found: Bars, title: str) -> Figure:
    rows = found.depth + len(found.rows)
    figure = Figure(figsize=(9, min(0.8 + 0.2 * (rows + 1) * found.world, 16)), layout="constrained")
    axes = figure.subplots()
    unit, factor = time_unit(found.span)
    tints = dict(zip(found.regions, TINTS, strict=False)) if len(found.regions) > 1 else {}
    sorted_bars: dict[tuple[str, str, str | None, bool], list[Bar]] = defaultdict(list)
    for bar in found.bars:
        fill = tints.get(bar.name, PLAIN) if bar.kind == REGION else FILLS.get(bar.kind, "black")
        sorted_bars[bar.kind, fill, _hatch(bar, found.span), bar.pending].append(bar)
    for (kind, fill, hatch, pending), some in sorted_bars.items():
        _draw(axes, kind, fill, hatch, pending, some, rows + 1, factor)
    if 0 < len(found.arrows) <= MOST_ARROWS:
        _arrows(axes, found, rows + 1, factor)
    _labels(axes, found, rows + 1, factor)
    axes.set_xlim(0, max(found.span / factor, 1e-9))
    axes.set_ylim((rows + 1) * found.world, -0.5)
    axes.set_yticks([r * (rows + 1) + rows / 2 for r in range(found.world)], _names(found))
    axes.set_xlabel(unit)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    handles = _legend(found, tints)
    columns = math.ceil(len(handles) / math.ceil(len(handles) / 6))
    figure.legend(handles=handles, loc="outside upper right", ncols=columns, fontsize=8, frameon=False)
    figure.suptitle(f"{title or 'run'}: who works, who waits", x=0.01, ha="left", fontsize=11, fontweight="bold")
    return figure


def _names(found: Bars) -> list[str]:
    """The lanes: the rank, what it is, and how much of the time it waited."""
    who = [f"rank {rank}" + (f", {found.roles[rank]}" if rank in found.roles else "") for rank in range(found.world)]
    return [f"{name}\nwaits {share:.0%}" for name, share in zip(who, shares(found), strict=True)]


def _legend(found: Bars, tints: dict[str, str]) -> list[Artist]:
    present = {bar.kind for bar in found.bars}
    samples = {name: (REGION, fill) for name, fill in tints.items()}
    if any(bar.kind == REGION and bar.name not in tints for bar in found.bars):
        samples[f"other {NAMES[REGION]}" if tints else NAMES[REGION]] = (REGION, PLAIN)
    samples |= {name: (kind, FILLS[kind]) for kind, name in NAMES.items() if kind in present - {REGION}}
    handles: list[Artist] = [
        Patch(facecolor=fill, edgecolor="#666", hatch="////" if kind == WAIT else "", label=name)
        for name, (kind, fill) in samples.items()
    ]
    if MARK in present:
        handles.append(Line2D([], [], linestyle="", marker="d", color="black", markersize=5, label="mark"))
    if any(bar.pending for bar in found.bars):
        handles.append(Patch(facecolor="white", edgecolor=WARN, hatch=STUCK, label="never ended"))
    return handles


def _hatch(bar: Bar, span: float) -> str | None:
    """Hatching takes long to draw, and cannot be seen in a bar of a few pixels."""
    if bar.pending:
        return STUCK
    return "////" if bar.kind == WAIT and bar.end - bar.start > span * NARROW else None


def _draw(
    axes: Axes, kind: str, fill: str, hatch: str | None, pending: bool, some: list[Bar], high: int, factor: float
) -> None:
    if kind in (MARK, RETURN):
        points = [(bar.start / factor, bar.rank * high + bar.row + 0.45) for bar in some]
        look = {"marker": "|", "s": 30} if kind == RETURN else MARKED if len(some) <= MANY_MARKS else SMALL
        axes.scatter(*zip(*points, strict=True), color="black", zorder=6, **look)
        return
    boxes = []
    for bar in some:
        x, y, end = bar.start / factor, bar.rank * high + bar.row, bar.end / factor
        boxes.append([(x, y), (end, y), (end, y + 0.9), (x, y + 0.9)])
    edge = WARN if pending else "#555555" if kind in (REGION, WAIT) else fill
    if len(boxes) > MOST_HATCHED and hatch:
        hatch, fill = None, "#b0b5be"
    axes.add_collection(PolyCollection(boxes, facecolor=fill, edgecolor=edge, hatch=hatch, linewidth=0.5))


def _arrows(axes: Axes, found: Bars, high: int, factor: float) -> None:
    """From the row of sends to the row of receives, with a head that points the way."""
    out, into = (found.depth + name + 0.5 for name in (1, 2))
    ways = [
        [(a / factor, sender * high + out), (b / factor, receiver * high + into)]
        for sender, a, receiver, b in found.arrows
    ]
    axes.add_collection(LineCollection(ways, colors=ARROW, linewidths=0.6, alpha=0.7, zorder=5))
    for head, down in (("v", True), ("^", False)):  # the axis of the lanes points down
        ends = [end for start, end in ways if (end[1] > start[1]) == down]
        if ends:
            axes.scatter(*zip(*ends, strict=True), marker=head, s=9, color=ARROW, linewidths=0, zorder=5)


def _labels(axes: Axes, found: Bars, high: int, factor: float) -> None:
    """Names of the regions that have room for them."""
    for bar in found.bars:
        if bar.kind == REGION and bar.end - bar.start > found.span * 0.011 * len(bar.name):
            middle = (bar.start + bar.end) / 2 / factor
            axes.text(
                middle, bar.rank * high + bar.row + 0.48, bar.name, fontsize=7, ha="center", va="center", zorder=6
            )
