"""`PipelineChart`: a lane a rank, a box an action; the planned schedule and the measured run under each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from dtcourse.run import Run
from dtcourse.views.tracks import BACKWARD, FORWARD, INPUT, WEIGHT, Box, Track, chosen, fitted, planned
from dtcourse.views.view import WARN, View, ink_on, script
from dtcourse.views.words import some, time_unit

SCRIPTS = ("common.js", "axis.js", "pipeline.js")
# Apart in grey as well: the forward is the darkest, and its later stages are darker still; the others become lighter.
FILLS = {FORWARD: "#0072B2", BACKWARD: "#E69F00", INPUT: "#CC79A7", WEIGHT: "#F0E442"}
NAMES = {FORWARD: "F forward", BACKWARD: "B backward", INPUT: "I input half", WEIGHT: "W weight half"}
DEEPEST = 0.45  # how far the shade of a rank's last stage is from that of its first
IDLE = {"facecolor": "#f4f4f4", "edgecolor": "#c9ccd2", "hatch": "////", "linewidth": 0.0}
WIDE = 9.6  # inches
NARROW = 1 / 250  # of the axis
SMALLEST, LARGEST = 4.5, 10  # points, of the text in a box


def chart(run: Run, plan: Any = None, step: int = -1) -> PipelineChart:
    """The pipeline that a run really was; over it the plan, if there is one, on the same axis.

    plan  what `simulate(schedule)` returns; it is stretched so that it holds as much work as the run
    step  which one of a run with several, counted from 0; the last unless told

    Raises ValueError for a run without a pipeline's regions, a step that it has not, or a plan of something else;
    TypeError for what is no plan.
    """
    measured, which = chosen(run, step)
    tracks = [measured] if plan is None else [fitted(plan, measured, run), measured]
    return PipelineChart(f"Pipeline of {run.function or 'a run'}{which and ', '}{which}", tracks)


def pipeline_plan(plans: Any) -> PipelineChart:
    """A schedule before anything has run: `pipeline_plan(simulate(schedule))`; times are in the unit of its costs.

    Several on one axis: `pipeline_plan({"GPipe": simulate(...), "1F1B": simulate(...)})`. Raises TypeError for what is
    no plan.
    """
    named = plans if isinstance(plans, Mapping) and plans else {"planned": plans}
    return PipelineChart(
        "Plan of a pipeline" if len(named) == 1 else "Plans of pipelines",
        [planned(p, name) for name, p in named.items()],
    )


class PipelineChart(View):
    """tracks  what is drawn, from above: for each its `bubble`, `span`, `lanes`, ..."""

    _esm = script(*SCRIPTS)

    def __init__(self, title: str, tracks: list[Track]) -> None:
        self.title, self.tracks = title, tracks
        super().__init__(data=chart_data(title, tracks, self.caption))

    @property
    def caption(self) -> str:
        last = self.tracks[-1]
        idle = ", ".join(f"rank {rank} {last.idle(rank):.0%}" for rank in last.lanes)
        stuck = [str(box.action) + f" on rank {box.rank}" for box in last.boxes if box.pending]
        return (
            f"{self.title}: {len(last.lanes)} ranks, {last.microbatches} micro-batches. "
            f"Bubble, the idle part of all ranks' time from the first action to the last: {bubbles(self.tracks)}. "
            f"Idle ({last.name}): {idle}." + (f" Never ended: {some(stuck, 4)}." if stuck else "")
        )

    def figure(self) -> Figure:
        return _figure(self.title, self.tracks)


def bubbles(tracks: list[Track]) -> str:
    return ", ".join(f"{track.name} {track.bubble:.0%}" for track in tracks)


def shade(kind: str, part: float) -> str:
    """The colour of an action; `part` is 0 on the first of its rank's stages and 1 on the last."""
    towards = (0, 0, 0) if kind == FORWARD else (1, 1, 1)
    mix = DEEPEST * part
    return to_hex([(1 - mix) * a + mix * b for a, b in zip(to_rgb(FILLS[kind]), towards, strict=True)])


def fill(track: Track, box: Box) -> str:
    stages = track.stages[box.rank]
    return shade(box.action.kind, stages.index(box.action.stage) / max(len(stages) - 1, 1))


def kinds(tracks: list[Track]) -> list[str]:
    """Those that there are, as the legend has them."""
    present = {box.action.kind for track in tracks for box in track.boxes}
    return [kind for kind in FILLS if kind in present]


def letters(tracks: list[Track]) -> str:
    """What the letters in the boxes mean; empty where each rank has one stage."""
    most = max(len(stages) for track in tracks for stages in track.stages.values())
    return "" if most == 1 else f"{', '.join('abcdefghijklmnopqrstuvwxyz'[:most])}: a rank's stages, in order"


# -- as a widget -------------------------------------------------------------------------------------------------------


def chart_data(title: str, tracks: list[Track], caption: str) -> dict[str, Any]:
    """The tracks as the plain data that pipeline.js reads."""
    return {
        "title": title,
        "timed": tracks[-1].timed,
        "span": max(track.span for track in tracks),
        "bubbles": bubbles(tracks),
        "caption": caption,
        "letters": letters(tracks),
        "kinds": [[NAMES[kind], FILLS[kind]] for kind in kinds(tracks)],
        "tracks": [_track_data(track) for track in tracks],
    }


def _track_data(track: Track) -> dict[str, Any]:
    lanes: dict[int, list[list[Any]]] = {rank: [] for rank in track.lanes}
    for box, told in track.told():
        kind, microbatch, stage = box.action
        where = [round(box.start, 4), round(box.end, 4)]
        lanes[box.rank].append(
            [kind, microbatch, stage, *where, track.label(box), fill(track, box), int(box.pending), told]
        )
    return {
        "name": track.name,
        "span": track.span,
        "bubble": round(track.bubble, 4),
        "lanes": [{"rank": r, "idle": round(track.idle(r), 4), "boxes": boxes} for r, boxes in lanes.items()],
    }


# -- as a picture ------------------------------------------------------------------------------------------------------


def _figure(title: str, tracks: list[Track]) -> Figure:
    lanes = sum(len(track.lanes) for track in tracks)
    high = 0.34 if lanes <= 16 else 0.27
    figure = Figure(figsize=(WIDE, 1.0 + high * lanes + 0.35 * len(tracks)), layout="constrained")
    span = max(track.span for track in tracks) or 1.0
    unit, factor = time_unit(span) if tracks[-1].timed else ("time, in the unit of the plan's costs", 1)
    heights = [len(track.lanes) + 0.2 for track in tracks]
    every = figure.subplots(len(tracks), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for axes, track in zip(every, tracks, strict=True):
        _draw(axes, track, factor, span)
        axes.set_xlim(0, 1.002 * span / factor)
    every[-1].set_xlabel(unit)
    handles = [Patch(facecolor=FILLS[kind], edgecolor="#333333", label=NAMES[kind]) for kind in kinds(tracks)]
    handles.append(Patch(**IDLE, label="idle"))
    if meaning := letters(tracks):
        handles.append(Patch(alpha=0, label=meaning))
    if any(box.pending for track in tracks for box in track.boxes):
        handles.append(Patch(facecolor="white", edgecolor=WARN, hatch="xxxx", label="never ended"))
    figure.legend(handles=handles, loc="outside upper right", ncols=len(handles), fontsize=9, frameon=False)
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
    return figure


def _draw(axes: Axes, track: Track, factor: float, span: float) -> None:
    ranks = list(track.lanes)
    whole = [_corners(0, track.span / factor, row) for row in range(len(ranks))]
    axes.add_collection(PolyCollection(whole, **IDLE))
    shapes: dict[tuple[str, bool], list[list[tuple[float, float]]]] = {}
    for row, lane in enumerate(track.lanes.values()):
        for box in lane:
            corners = _corners(box.start / factor, box.end / factor, row)
            shapes.setdefault((fill(track, box), box.pending), []).append(corners)
    narrow = track.span / len(track.boxes) * len(ranks) < span * NARROW  # edges would be all that is seen
    for (colour, pending), boxes in shapes.items():
        look = {"hatch": "xxxx", "edgecolor": WARN} if pending else {"edgecolor": "#333333"}
        look["linewidth"] = 0.0 if narrow and not pending else 0.6
        axes.add_collection(PolyCollection(boxes, facecolor="white" if pending else colour, **look))
    _labels(axes, track, factor, span)
    axes.set_ylim(len(ranks) - 0.02, -0.02)
    axes.set_yticks(
        [row + 0.46 for row in range(len(ranks))], [f"rank {rank}, idle {track.idle(rank):.0%}" for rank in ranks]
    )
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_title(f"{track.name}: bubble {track.bubble:.0%}", loc="left", fontsize=11, fontweight="bold", pad=4)


def _corners(start: float, end: float, row: float) -> list[tuple[float, float]]:
    return [(start, row), (end, row), (end, row + 0.92), (start, row + 0.92)]


def _labels(axes: Axes, track: Track, factor: float, span: float) -> None:
    """The micro-batch in each box that has room for it; in one size a kind, for which most of its boxes have room."""
    points = 72 * (WIDE - 1.3) / span
    room: dict[str, list[float]] = {}
    for box in track.boxes:
        fits = points * (box.end - box.start) / (0.62 * len(track.label(box)) + 0.2)
        room.setdefault(box.action.kind, []).append(fits)
    sizes = {kind: min(max(sorted(fits)[len(fits) // 8], SMALLEST), LARGEST) for kind, fits in room.items()}
    for row, lane in enumerate(track.lanes.values()):
        for box in lane:
            text, size = track.label(box), sizes[box.action.kind]
            if points * (box.end - box.start) < (0.62 * len(text) + 0.1) * size:
                continue
            middle = (box.start + box.end) / 2 / factor
            style = {"ha": "center", "va": "center_baseline", "fontsize": size, "clip_on": True, "in_layout": False}
            axes.text(middle, row + 0.47, text, color=ink_on("#ffffff" if box.pending else fill(track, box)), **style)
