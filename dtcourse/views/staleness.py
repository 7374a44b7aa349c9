"""`Staleness`: how many updates the parameters had had since the worker of each applied gradient pulled them."""

from __future__ import annotations

from collections import Counter

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator

from dtcourse.run import Run
from dtcourse.views import words
from dtcourse.views.marks import numbered
from dtcourse.views.picture import Picture
from dtcourse.views.view import WARN, colour, ink

LABELS = ("version", "worker", "step", "staleness")


class Staleness(Picture):
    """A histogram of the marks "update", a colour per worker.

    Several servers each apply their shard of a gradient. Each gradient counts once, as the server of the lowest rank
    saw it.

    counts   worker -> staleness -> how many of its gradients were applied with it
    mean     over all gradients
    means    worker -> mean over its gradients
    most     the largest staleness
    dropped  how many gradients that server did not apply (marks "dropped")
    """

    def __init__(self, run: Run, bound: int | None = None) -> None:
        updates = numbered(run, "update", LABELS, "on the server, for each gradient that it applies")
        if odd := [e for e in updates if not all(float(e.labels[label]).is_integer() for label in LABELS)]:
            raise ValueError(f'a mark "update" of rank {odd[0].rank} has {odd[0].labels}: these are whole numbers')
        self.title, self.bound = run.function or "a run", bound
        self.servers = sorted({e.rank for e in updates})
        self.counts: dict[int, Counter[int]] = {}
        for e in updates:
            if e.rank == self.servers[0]:
                worker, age = int(e.labels["worker"]), int(e.labels["staleness"])  # 1.0 too, as a tensor may say it
                self.counts.setdefault(worker, Counter())[age] += 1
        self.counts = dict(sorted(self.counts.items()))
        self.means = {worker: _mean(found) for worker, found in self.counts.items()}
        whole = sum(self.counts.values(), Counter())
        self.gradients, self.mean, self.most = whole.total(), _mean(whole), max(whole)
        self.dropped = len(run.marks("dropped", self.servers[0]))

    @property
    def caption(self) -> str:
        by = ", ".join(f"{worker}: {mean:.2f}" for worker, mean in self.means.items())
        text = (
            f"Staleness of {self.title}: {self.gradients:,} gradients applied, {self.mean:.2f} updates old "
            f"in the mean, {self.most} at most. Mean by worker: {by}."
        )
        if self.bound is not None:
            beyond = sum(n for found in self.counts.values() for age, n in found.items() if age > self.bound)
            text += f" Beyond the bound {self.bound}: {beyond or 'none'}."
        if self.dropped:
            text += f" Dropped: {self.dropped:,}."
        if len(self.servers) > 1:
            text += f" Counted on rank {self.servers[0]}; the other shards are on {words.ranks(self.servers[1:])}."
        return text

    def figure(self) -> Figure:
        figure = Figure(figsize=(8, 3.4), layout="constrained")
        axes = figure.subplots()
        _bars(axes, self.counts)
        high = axes.get_ylim()[1]
        axes.set_ylim(0, high * 1.16)
        last = max(self.most, self.bound or 0)
        axes.set_xlim(-0.6, last + 0.8)
        left = self.mean < last / 2
        axes.axvline(self.mean, color="black", linestyle="--", linewidth=1.6, gid="mean")
        _beside(axes, self.mean, f"mean {self.mean:.2f}", "black", right=left)
        if self.bound is not None:
            axes.axvline(self.bound + 0.5, color=WARN, linewidth=2, gid="bound")
            _beside(axes, self.bound + 0.5, f"bound {self.bound}", WARN, right=False)
        axes.set_xlabel("staleness (updates between pull and apply)")
        axes.set_ylabel("gradients")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(integer=True))
        axes.spines[["top", "right"]].set_visible(False)
        figure.legend(loc="outside right upper", fontsize=9, frameon=False)
        figure.suptitle(
            f"{self.title}: how stale its gradients were", x=0.01, ha="left", fontsize=11, fontweight="bold"
        )
        return figure


def _mean(found: Counter[int]) -> float:
    return sum(age * times for age, times in found.items()) / found.total()


def _bars(axes: Axes, counts: dict[int, Counter[int]]) -> None:
    """Stacked, with the worker's number in each part that has room for it: colour is not all that tells them apart."""
    tallest = max(sum(counts.values(), Counter()).values())
    floor: Counter[int] = Counter()
    for worker, found in counts.items():
        ages = sorted(found)
        label = f"worker {worker}: mean {_mean(found):.2f}"
        bars = axes.bar(
            ages,
            [found[age] for age in ages],
            bottom=[floor[age] for age in ages],
            width=0.86,
            color=colour(worker),
            edgecolor="white",
            linewidth=0.8,
            label=label,
        )
        names = [str(worker) if found[age] > 0.07 * tallest else "" for age in ages]
        rim = [withStroke(linewidth=2.5, foreground=colour(worker))]  # where the line of the mean crosses it
        axes.bar_label(bars, names, label_type="center", color=ink(worker), fontsize=8, zorder=5, path_effects=rim)
        floor.update(found)


def _beside(axes: Axes, x: float, text: str, shade: str, right: bool) -> None:
    axes.annotate(
        text,
        (x, 1),
        xycoords=axes.get_xaxis_transform(),
        xytext=(5 if right else -5, 0),
        textcoords="offset points",
        ha="left" if right else "right",
        va="top",
        color=shade,
        fontweight="bold",
    )
