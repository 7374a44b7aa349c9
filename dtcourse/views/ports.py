"""`ports`: how many bytes pass each rank's port, in and out, as workers are added."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from dtcourse.run import Run
from dtcourse.views.picture import Picture
from dtcourse.views.roles import roles
from dtcourse.views.words import size

OUT, IN = "#0072B2", "#E69F00"  # as sends and receives on the timeline


def ports(runs: Mapping[int, Run], formula: Callable[[int], float] | None = None) -> Ports:
    """Compare runs with 1, 2, 4, ... workers: `ports({1: run_1, 2: run_2, 4: run_4}, formula=lambda w: w * nbytes)`.

    runs     number of workers -> the run with so many
    formula  number of workers -> the bytes expected in each direction at the busiest rank, drawn as a line

    Raises ValueError if there are no runs, if one sent no messages, or for numbers of workers that are none; TypeError
    for runs without such numbers.
    """
    if not isinstance(runs, Mapping):
        raise TypeError(
            f"each run has its number of workers: ports({{1: run_1, 2: run_2}}), not a {type(runs).__name__}"
        )
    if wrong := [workers for workers in runs if not isinstance(workers, int) or workers < 1]:
        raise ValueError(f"a number of workers is 1, 2, ..., not {wrong[0]!r}: ports({{1: run_1, 2: run_2}})")
    return Ports(runs, formula)


@dataclass(frozen=True)
class Load:
    """Bytes in and out of the ranks of one run."""

    workers: int
    busiest: int  # the rank with the most bytes both ways; the lowest of equals
    role: str  # of the busiest, where the run's marks tell: "server", "worker"
    received: int  # bytes, of the busiest
    sent: int
    others_received: float  # bytes, mean of the other ranks
    others_sent: float


class Ports(Picture):
    """loads   a `Load` for each run, by its number of workers"""

    def __init__(self, runs: Mapping[int, Run], formula: Callable[[int], float] | None) -> None:
        if not runs:
            raise ValueError("there is no run to draw: ports({1: run_1, 2: run_2, 4: run_4}), by the number of workers")
        self.loads = [_load(workers, run) for workers, run in sorted(runs.items())]
        self.expected = [formula(load.workers) for load in self.loads] if formula else None
        self.title = " and ".join(dict.fromkeys(run.function or "a run" for run in runs.values()))

    @property
    def busiest(self) -> str:
        """What the busiest ranks are called: `rank 0 (server)`, if it is the same in all runs."""
        names = {f"rank {load.busiest}" + (f" ({load.role})" if load.role else "") for load in self.loads}
        return names.pop() if len(names) == 1 else "the busiest rank"

    @property
    def caption(self) -> str:
        loads = "; ".join(
            f"{load.workers} worker{'s' if load.workers > 1 else ''}: {size(load.received)} in, {size(load.sent)} out "
            f"(others {size(round(load.others_received))} in, {size(round(load.others_sent))} out)"
            for load in self.loads
        )
        text = f"Bytes through the port of {self.busiest} of {self.title}. {loads}."
        if self.expected:
            text += f" The formula: {', '.join(size(round(count)) for count in self.expected)}."
        return text

    def figure(self) -> Figure:
        figure = Figure(figsize=(8.4, 3.6), layout="constrained")
        axes = figure.subplots()
        workers = np.array([load.workers for load in self.loads])
        unit = np.diff(workers).min() / 5 if len(workers) > 1 else 0.2  # four bars and a gap
        bars = (
            (-1.5, "received", IN, "", f"{self.busiest}, in"),
            (-0.5, "sent", OUT, "", f"{self.busiest}, out"),
            (0.5, "others_received", IN, "////", "others (mean), in"),
            (1.5, "others_sent", OUT, "////", "others (mean), out"),
        )
        for place, field, shade, hatch, label in bars:
            # the others are hatched, so that the busiest stands out in grey as well
            look = {"facecolor": "white", "hatch": hatch} if hatch else {"facecolor": shade}
            counts = [getattr(load, field) for load in self.loads]
            axes.bar(workers + place * unit, counts, width=0.9 * unit, label=label, edgecolor=shade, **look)
        for load in self.loads:
            most = max(load.received, load.sent)
            where = {"xytext": (-2, 6), "textcoords": "offset points", "ha": "right"}
            axes.annotate(size(most), (load.workers - unit, most), fontsize=9, fontweight="bold", **where)
        if self.expected:
            look = {"color": "black", "linestyle": "--", "marker": "D", "markersize": 5}
            axes.plot(workers - unit, self.expected, label="formula", **look)
        axes.set_xticks(workers)
        room = 0.13 * (workers[-1] - workers[0] + 4 * unit)  # for the first number, left of its bars
        axes.set_xlim(workers[0] - unit - room, workers[-1] + 2.5 * unit)
        axes.set_xlabel("workers")
        axes.set_ylim(0, max(axes.dataLim.y1 * 1.14, 1))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda count, _: size(round(count))))
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(axis="x", length=0)
        figure.legend(loc="outside right upper", fontsize=9, frameon=False)
        figure.suptitle(f"{self.title}: bytes in and out of a rank", x=0.01, ha="left", fontsize=11, fontweight="bold")
        return figure


def _load(workers: int, run: Run) -> Load:
    if not run.messages():
        raise ValueError(
            f"the run of {run.function or 'a function'} with {workers} workers sent no messages; what a library "
            "collective moves inside itself is not visible"
        )
    received = [run.bytes_received(rank) for rank in range(run.world_size)]
    sent = [run.bytes_sent(rank) for rank in range(run.world_size)]
    busiest = max(range(run.world_size), key=lambda rank: received[rank] + sent[rank])
    others = max(run.world_size - 1, 1)
    return Load(
        workers,
        busiest,
        roles(run).get(busiest, ""),
        received[busiest],
        sent[busiest],
        (sum(received) - received[busiest]) / others,
        (sum(sent) - sent[busiest]) / others,
    )
