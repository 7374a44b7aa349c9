"""`Overlap`: two lanes a rank, what it computes and what it communicates; how much of that lies under backward."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure

from dtcourse.run import Run
from dtcourse.views.exchange import BACKWARD, EXPOSED, FORWARD, OVERLAPPED, Step, Stretch, chosen
from dtcourse.views.lanes import SCRIPTS, Chart, Lane, Panel, Shape, chart_data, chart_figure
from dtcourse.views.view import View, script
from dtcourse.views.words import duration

# What lies in one lane is apart in grey as well.
FILLS = {FORWARD: "#56B4E9", BACKWARD: "#0072B2", OVERLAPPED: "#009E73", EXPOSED: "#E69F00"}
FOOT = "Point at a box to read it, and to see the same bucket on the other ranks."
SIDE = 132


def overlap(runs: Run | Mapping[str, Run], step: int = -1) -> Overlap:
    """Backward and communication on one axis: of one run, or of several, `overlap({"one": run_1, "other": run_2})`.

    step  which one of a run with several, counted from 0; the last unless told

    Raises ValueError for a run without regions "backward", without communication, or without that step, and if there
    are no runs; TypeError for runs without names.
    """
    if not isinstance(runs, (Run, Mapping)):
        raise TypeError(f'runs have names: overlap({{"one": run_1, "other": run_2}}), not a {type(runs).__name__}')
    if not runs:
        raise ValueError('there is no run to draw: overlap({"name": run})')
    return Overlap(runs, step)


class Overlap(View):
    """What counts as communication, and as backward, stands in exchange.py. Of several runs the figures are the last's.

    steps         name -> the `Step` as drawn
    share         rank -> the overlapped part of its communication, 0 to 1
    share_of_all  the same of all ranks together
    exposed       rank -> seconds that it communicated outside its backward
    seconds       of the step, from the first rank's start to the last one's end
    """

    _esm = script(*SCRIPTS)

    def __init__(self, runs: Run | Mapping[str, Run], step: int) -> None:
        named = {"": runs} if isinstance(runs, Run) else runs
        found = {name: chosen(run, step) for name, run in named.items()}
        self.steps = {name: one for name, (one, _) in found.items()}
        for name, one in self.steps.items():
            if not any(one.communicating.values()):
                raise ValueError(f"{name or named[name].function or 'this run'} communicated nothing in this step")
        *_, last = self.steps.values()
        self.share = {rank: last.share(rank) for rank in last.communicating}
        self.share_of_all = last.share(*last.communicating)
        self.exposed = {rank: last.spent(rank, EXPOSED) / 1e6 for rank in last.communicating}
        self.seconds = last.span / 1e6
        self.title = _title(named, [which for _, which in found.values()])
        self._chart = _chart(self.title, self.steps, self.caption)
        super().__init__(data=chart_data(self._chart))

    @property
    def caption(self) -> str:
        ranks = ", ".join(f"rank {rank} {share:.0%}" for rank, share in self.share.items())
        name = next(reversed(self.steps))
        return (
            f"{self.title}. The part of the communication that lies under a backward pass, and the step's length: "
            f"{told(self.steps)}. Overlapped{name and f' ({name})'}: {ranks}. Exposed, at most: "
            f"{duration(round(max(self.exposed.values()) * 1e6, 1))}."
        )

    def figure(self) -> Figure:
        return chart_figure(self._chart)


def told(steps: Mapping[str, Step]) -> str:
    return ", ".join(f"{name and name + ' '}{_figures(step)}" for name, step in steps.items())


def _figures(step: Step) -> str:
    return f"{step.share(*step.communicating):.0%} in {duration(round(step.span, 1))}"


def _title(named: Mapping[str, Run], which: list[str]) -> str:
    (first, *more), steps = named.values(), set(which)
    where = "" if more else f" in {first.function or 'a run'}"
    return f"Overlap{where}" + (f", {steps.pop()}" if len(steps) == 1 and any(which) else "")


def _chart(title: str, steps: Mapping[str, Step], caption: str) -> Chart:
    present = {one.kind for step in steps.values() for lane in _lanes(step) for one in lane}
    legend = tuple((kind, fill) for kind, fill in FILLS.items() if kind in present)
    panels = tuple(_panel(name, step) for name, step in steps.items())
    return Chart(title, f"overlapped: {told(steps)}", caption, FOOT, legend, panels, side=SIDE)


def _lanes(step: Step) -> list[tuple[Stretch, ...]]:
    return [*step.computing.values(), *step.communicating.values()]


def _panel(name: str, step: Step) -> Panel:
    lanes = []
    for rank, computing in step.computing.items():
        note = f"overlapped {step.share(rank):.0%}"
        lanes.append(Lane(rank, f"rank {rank} computes", "computes", tuple(map(_shape, computing))))
        lanes.append(Lane(rank, note, note, tuple(map(_shape, step.communicating[rank]))))
    title = f"{step.share(*step.communicating):.0%} of the communication overlapped, {duration(round(step.span, 1))}"
    return Panel(name, f"{name}: {title}" if name else title, step.span, tuple(lanes))


def _shape(one: Stretch) -> Shape:
    part = f", {one.kind}" if one.kind in (OVERLAPPED, EXPOSED) else ""
    until = "the end: never ended" if one.pending else duration(round(one.end, 1))
    words = f"Rank {one.rank}, {one.what}{part}: from {duration(round(one.start, 1))} to {until}."
    label = one.kind if not part else "" if one.bucket is None else str(one.bucket)
    group = one.what if part else one.kind
    return Shape(one.kind, group, one.start, one.end, label, FILLS[one.kind], words, one.pending)
