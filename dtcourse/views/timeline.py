"""`Timeline`: a lane per rank, with what it worked on, what it sent and received, and where it waited."""

from __future__ import annotations

from collections import defaultdict

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from dtcourse.events import COLLECTIVE, MARK, RECV, REGION, RETURN, SEND
from dtcourse.run import Run
from dtcourse.views.bars import COMPUTE, WAIT, Bar, Bars, bars, bars_data, shares
from dtcourse.views.view import WARN, View, script

SCRIPTS = ("common.js", "timeline.js")
FILLS = {
    COMPUTE: "#56B4E9",
    WAIT: "#f2f2f2",
    SEND: "#0072B2",
    RECV: "#E69F00",
    COLLECTIVE: "#CC79A7",
    REGION: "#e3e6eb",
}
NAMES = {
    REGION: "region",
    COMPUTE: "computes",
    WAIT: "waits",
    SEND: "sends",
    RECV: "receives",
    COLLECTIVE: "collective",
}
STUCK = "xxxx"  # how what never ended is hatched
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
        waited = ", ".join(f"rank {r} {share:.0%}" for r, share in enumerate(shares(self._bars)))
        name = self._run.function or "a run"
        pending = sum(bar.pending for bar in self._bars.bars if bar.kind in (SEND, RECV, COLLECTIVE))
        stuck = f" {pending} operations never ended." if pending else ""
        return f"Timeline of {name}, {duration(self._bars.span)}. Time spent waiting: {waited}.{stuck}"


def duration(microseconds: float) -> str:
    for limit, unit, factor in ((1e3, "µs", 1), (1e6, "ms", 1e3)):
        if microseconds < limit:
            return f"{microseconds / factor:.4g} {unit}"
    return f"{microseconds / 1e6:.4g} s"


def _figure(found: Bars, title: str) -> Figure:
    rows = found.depth + len(found.rows)
    figure = Figure(figsize=(9, min(0.8 + 0.2 * (rows + 1) * found.world, 16)), layout="constrained")
    axes = figure.subplots()
    factor, unit = (1, "µs") if found.span < 1e3 else (1e3, "ms") if found.span < 1e6 else (1e6, "s")
    sorted_bars: dict[tuple[str, bool], list[Bar]] = defaultdict(list)
    for bar in found.bars:
        sorted_bars[bar.kind, bar.pending].append(bar)
    for (kind, pending), some in sorted_bars.items():
        _draw(axes, kind, pending, some, rows + 1, factor)
    if len(found.arrows) <= MOST_ARROWS:
        out, into = (found.depth + name + 0.5 for name in (1, 2))  # the rows of sends and of receives
        ways = [
            [(a / factor, sender * (rows + 1) + out), (b / factor, receiver * (rows + 1) + into)]
            for sender, a, receiver, b in found.arrows
        ]
        axes.add_collection(LineCollection(ways, colors="#444444", linewidths=0.6, alpha=0.7, zorder=5))
    _labels(axes, found, rows + 1, factor)
    axes.set_xlim(0, max(found.span / factor, 1e-9))
    axes.set_ylim((rows + 1) * found.world, -0.5)
    axes.set_yticks([r * (rows + 1) + rows / 2 for r in range(found.world)], [f"rank {r}" for r in range(found.world)])
    axes.set_xlabel(unit)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    present = {bar.kind for bar in found.bars}
    patches = [
        Patch(facecolor=FILLS[kind], edgecolor="#666", hatch="////" if kind == WAIT else "", label=name)
        for kind, name in NAMES.items()
        if kind in present
    ]
    if any(bar.pending for bar in found.bars):
        patches.append(Patch(facecolor="white", edgecolor=WARN, hatch=STUCK, label="never ended"))
    figure.legend(handles=patches, loc="outside upper right", ncols=len(patches), fontsize=8, frameon=False)
    figure.suptitle(f"{title or 'run'}: who works, who waits", x=0.01, ha="left", fontsize=11, fontweight="bold")
    return figure


def _draw(axes: Axes, kind: str, pending: bool, some: list[Bar], high: int, factor: float) -> None:
    if kind in (MARK, RETURN):
        points = [(bar.start / factor, bar.rank * high + bar.row + 0.45) for bar in some]
        axes.scatter(*zip(*points, strict=True), marker="|" if kind == RETURN else "d", s=30, color="black", zorder=6)
        return
    boxes = []
    for bar in some:
        x, y, end = bar.start / factor, bar.rank * high + bar.row, bar.end / factor
        boxes.append([(x, y), (end, y), (end, y + 0.9), (x, y + 0.9)])
    edge = WARN if pending else "#555555" if kind in (REGION, WAIT) else FILLS[kind]
    hatch = STUCK if pending else "////" if kind == WAIT else None
    fill = FILLS[kind]
    if len(boxes) > MOST_HATCHED and hatch:
        hatch, fill = None, "#b0b5be"
    axes.add_collection(PolyCollection(boxes, facecolor=fill, edgecolor=edge, hatch=hatch, linewidth=0.5))


def _labels(axes: Axes, found: Bars, high: int, factor: float) -> None:
    """Names of the regions that have room for them."""
    for bar in found.bars:
        if bar.kind == REGION and bar.end - bar.start > found.span * 0.011 * len(bar.name):
            middle = (bar.start + bar.end) / 2 / factor
            axes.text(
                middle, bar.rank * high + bar.row + 0.48, bar.name, fontsize=7, ha="center", va="center", zorder=6
            )
