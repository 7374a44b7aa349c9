"""`PipelineChart`: a lane a rank, a box an action; the planned schedule and the measured run under each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure

from dtcourse.run import Run
from dtcourse.views.lanes import SCRIPTS, Chart, Lane, Panel, Shape, chart_data, chart_figure
from dtcourse.views.tracks import BACKWARD, FORWARD, INPUT, WEIGHT, Box, Track, chosen, fitted, planned
from dtcourse.views.view import View, script
from dtcourse.views.words import some

# Apart in grey as well: the forward is the darkest, and its later stages are darker still; the others become lighter.
FILLS = {FORWARD: "#0072B2", BACKWARD: "#E69F00", INPUT: "#CC79A7", WEIGHT: "#F0E442"}
NAMES = {FORWARD: "F forward", BACKWARD: "B backward", INPUT: "I input half", WEIGHT: "W weight half"}
DEEPEST = 0.45  # how far the shade of a rank's last stage is from that of its first
FOOT = "Point at a box to read it, and to follow its micro-batch."


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
        self._chart = _chart(title, tracks, self.caption)
        super().__init__(data=chart_data(self._chart))

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
        return chart_figure(self._chart)


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


def _chart(title: str, tracks: list[Track], caption: str) -> Chart:
    return Chart(
        title,
        f"bubble: {bubbles(tracks)}",
        caption,
        FOOT,
        tuple((NAMES[kind], FILLS[kind]) for kind in kinds(tracks)),
        tuple(map(_panel, tracks)),
        letters(tracks),
        "" if tracks[-1].timed else "time, in the unit of the plan's costs",
    )


def _panel(track: Track) -> Panel:
    shapes: dict[int, list[Shape]] = {rank: [] for rank in track.lanes}
    for box, told in track.told():
        kind, microbatch, _ = box.action
        shapes[box.rank].append(
            Shape(kind, microbatch, box.start, box.end, track.label(box), fill(track, box), told, box.pending)
        )
    idle = {rank: f"idle {track.idle(rank):.0%}" for rank in track.lanes}
    lanes = tuple(Lane(rank, f"rank {rank}, {idle[rank]}", idle[rank], tuple(own)) for rank, own in shapes.items())
    return Panel(track.name, f"{track.name}: bubble {track.bubble:.0%}", track.span, lanes)
