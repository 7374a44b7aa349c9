"""`Versions`: how old the weights were that each micro-batch of an asynchronous pipeline met, stage by stage."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from dtcourse.run import Run
from dtcourse.views.picture import Picture
from dtcourse.views.tracks import BACKWARD, FORWARD, Track, chosen
from dtcourse.views.view import ink_on

AGES = LinearSegmentedColormap.from_list("ages", ["#ffffff", "#f4b942", "#a4501c"])  # lighter to darker in grey as well
ROOM = 8.0  # inches, for the micro-batches
WIDEST = 0.85  # inches, of a cell
SPELT_OUT, NUMBERED = 0.55, 0.17  # inches that a cell needs for its versions, and for its number


class Met(NamedTuple):
    """The weights that a micro-batch met on a stage; versions count the updates of the stage.

    forward, backward  the version that its actions say
    updated            the version that its gradient was applied to
    """

    forward: int
    backward: int
    updated: int

    @property
    def staleness(self) -> int:
        """The updates that others made between the forward and the update."""
        return self.updated - self.forward


class Versions(Picture):
    """A row a stage, a column a micro-batch; darker is staler.

    met   stage -> micro-batch -> `Met`
    most  stage -> the largest staleness
    """

    def __init__(self, run: Run, step: int = -1) -> None:
        track, which = chosen(run, step)
        self.title = f"{run.function or 'a run'}{which and ', '}{which}"
        if not all(isinstance(box.version, int) for box in track.boxes):
            raise ValueError(
                f"not all actions of {self.title} say the version of their weights. An asynchronous schedule "
                '(`pipedream`) has it; in a loop of your own, region("forward", microbatch=m, stage=s, version=v) '
                'and the same with "backward"; v counts the updates in the weights that are used'
            )
        self.met = _met(track)
        self.most = {stage: max(one.staleness for one in found.values()) for stage, found in self.met.items()}

    @property
    def mixed(self) -> int:
        """How many backwards met another version than their forward, all stages together."""
        return sum(one.backward != one.forward for found in self.met.values() for one in found.values())

    @property
    def caption(self) -> str:
        ages = ", ".join(f"stage {stage} {most}" for stage, most in self.most.items())
        backwards = sum(map(len, self.met.values()))
        return (
            f"Weight versions of {self.title}. Updates between a micro-batch's forward and its own update, at most: "
            f"{ages}. Backwards that met another version than their forward: {self.mixed or 'none'} of {backwards}."
        )

    def figure(self) -> Figure:
        microbatches = sorted({microbatch for found in self.met.values() for microbatch in found})
        side, high, oldest = min(ROOM / len(microbatches), WIDEST), len(self.met), max(*self.most.values(), 1)
        figure = Figure(figsize=(max(1.9 + side * len(microbatches), 8), 1.4 + 0.5 * high), layout="constrained")
        axes = figure.subplots()
        ages = np.full((high, len(microbatches)), np.nan)
        for row, found in enumerate(self.met.values()):
            for microbatch, one in found.items():
                column = microbatches.index(microbatch)
                ages[row, column] = one.staleness
                _tell(axes, one, column, row, side, to_hex(AGES(one.staleness / oldest)))
        lines = {"edgecolor": "#777777", "linewidth": 0.5 if side > NUMBERED else 0.0, "clip_on": False}
        axes.pcolormesh(ages, cmap=AGES, vmin=0, vmax=oldest, **lines)
        every = 1 if side > NUMBERED else 5
        axes.set_xticks([i + 0.5 for i in range(0, len(microbatches), every)], microbatches[::every])
        places = [row + 0.5 for row in range(high)]
        axes.set_yticks(places, [f"stage {stage}" for stage in self.met])
        axes.invert_yaxis()
        right = axes.secondary_yaxis("right")
        right.set_yticks(places, [f"at most {most}" for most in self.most.values()])
        for one in (axes, right):
            one.tick_params(length=0)
            one.spines[:].set_color("#777777")
        axes.set_xlabel("micro-batch")
        figure.supxlabel(_explained(self.mixed > 0, side), x=0.01, ha="left", fontsize=9, color="#333333")
        figure.suptitle(f"Weight versions of {self.title}", x=0.01, ha="left", fontsize=12, fontweight="bold")
        return figure


def _met(track: Track) -> dict[int, dict[int, Met]]:
    """A pipeline is empty as a step begins: the first forward of a stage says how many updates it has had by then."""
    forward: dict[int, dict[int, int]] = {}
    met: dict[int, dict[int, Met]] = {}
    for box in sorted(track.boxes, key=lambda box: box.start):
        kind, microbatch, stage = box.action
        if kind == FORWARD:
            forward.setdefault(stage, {})[microbatch] = box.version
        elif kind == BACKWARD and not box.pending:
            own, seen = met.setdefault(stage, {}), forward.get(stage, {})
            if microbatch not in seen:
                raise ValueError(f"rank {box.rank} did {box.action}, and no forward of it in the same step")
            own[microbatch] = Met(seen[microbatch], box.version, next(iter(seen.values())) + len(own))
    if not met:
        raise ValueError("no backward has ended: without an update, no weights are old")
    return dict(sorted(met.items()))


def _tell(axes: Axes, one: Met, column: int, row: int, side: float, shade: str) -> None:
    """The staleness; the versions where there is room; a black edge where the backward met another one."""
    if side > NUMBERED:
        style = {"ha": "center", "va": "center", "color": ink_on(shade), "in_layout": False}
        spelt_out = side > SPELT_OUT
        number = {"fontsize": 12 if side > 0.3 else 9, "fontweight": "bold"}
        axes.text(column + 0.5, row + (0.4 if spelt_out else 0.55), one.staleness, **number, **style)
        if spelt_out:
            axes.text(column + 0.5, row + 0.78, f"F {one.forward}, B {one.backward}", fontsize=8.5, **style)
    if one.forward != one.backward:
        axes.add_patch(Rectangle((column, row), 1, 0.09, color="black", linewidth=0, zorder=3, gid="edge"))


def _explained(edges: bool, side: float) -> str:
    text = "Number" if side > NUMBERED else "The darker, the more"
    text += ": updates between a micro-batch's forward and its own update."
    text += " F, B: the version that each of them met." if side > SPELT_OUT else ""
    return text + ("\nBlack edge: B met another version than F." if edges else "")
