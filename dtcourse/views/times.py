"""`times`: how long something takes over the size of its message; measured as marks, predicted as lines."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from dtcourse.views.curves import LOOKS
from dtcourse.views.picture import Picture
from dtcourse.views.view import ink_on
from dtcourse.views.words import duration, size

Seconds = Mapping[int, float]  # bytes -> seconds
BAND = 0.06  # of the picture's height: it tells who is fastest where
ROOM = 0.015  # of the picture's width, for each letter in it


def times(measured: Mapping[str, Seconds] | None = None, predicted: Mapping[str, Seconds] | None = None) -> Times:
    """Compare algorithms over message size: `times(measured={"ring": {4_000: 0.002}}, predicted={"ring": {...}})`.

    measured   name -> bytes -> seconds, drawn as marks
    predicted  the same, drawn as lines; more sizes give a smoother one

    A name has one colour in both. The band below tells which prediction is fastest at which size (without predictions,
    which measurement). Raises ValueError if there is nothing to draw, and for sizes or times that are no positive
    numbers; TypeError for what is no such table.
    """
    tables = {"measured": measured or {}, "predicted": predicted or {}}
    for what, table in tables.items():
        if not isinstance(table, Mapping) or not all(isinstance(one, Mapping) for one in table.values()):
            raise TypeError(f'{what} is a table of names, bytes and seconds: times({what}={{"ring": {{4000: 0.002}}}})')
        for name, one in table.items():
            _demand_positive(what, name, one)
    return Times(tables["measured"], tables["predicted"])


def _demand_positive(what: str, name: str, table: Seconds) -> None:
    if not table:
        raise ValueError(f"{what} of {name!r} is empty: bytes -> seconds, at least one")
    for count, seconds in table.items():
        for number, is_what in ((count, "bytes"), (seconds, "seconds")):
            if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 < number < math.inf:
                raise ValueError(
                    f"{what} of {name!r}: {number!r} {is_what}; both axes are logarithmic, so only what is above 0"
                )


class Times(Picture):
    """fastest  (name, from, to) of each stretch of sizes, in bytes, in their order
    errors   name -> bytes -> (measured - predicted) / predicted, where both are known
    """

    def __init__(self, measured: Mapping[str, Seconds], predicted: Mapping[str, Seconds]) -> None:
        if not measured and not predicted:
            raise ValueError('there is nothing to draw: times(measured={"ring": {4000: 0.002}})')
        self._measured, self._predicted = _sorted(measured), _sorted(predicted)
        self.fastest = list(_fastest(self._predicted or self._measured))
        self.errors = {
            name: {count: one[count] / there[count] - 1 for count in one if count in there}
            for name, one in self._measured.items()
            if (there := self._predicted.get(name))
        }

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys((*self._predicted, *self._measured)))

    @property
    def _said(self) -> str:
        return "predicted" if self._predicted else "measured"

    @property
    def caption(self) -> str:
        stretches = ", ".join(f"{name} from {size(low)} to {size(high)}" for name, low, high in self.fastest)
        text = f"Seconds over message size of {', '.join(self.names)}. Fastest ({self._said}): {stretches}."
        every = [abs(error) for one in self.errors.values() for error in one.values()]
        return text + (f" Measured is off the prediction by at most {max(every):.0%}." if every else "")

    def figure(self) -> Figure:
        figure = Figure(figsize=(8.4, 4.4), layout="constrained")
        axes = figure.subplots()
        looks = {name: LOOKS[i % len(LOOKS)] for i, name in enumerate(self.names)}
        for name, one in self._predicted.items():
            shade, dashes, _ = looks[name]
            axes.plot(list(one), list(one.values()), color=shade, linestyle=dashes, linewidth=1.8)
        for name, one in self._measured.items():
            shade, _, mark = looks[name]
            style = {"marker": mark, "markersize": 7, "markeredgecolor": "white", "linestyle": ""}
            axes.plot(list(one), list(one.values()), color=shade, **style)
        axes.set(xscale="log", yscale="log", xlabel="bytes of the message")
        _band(axes, self.fastest, {name: shade for name, (shade, _, _) in looks.items()})
        axes.xaxis.set_major_formatter(FuncFormatter(lambda count, _: size(round(count))))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda seconds, _: duration(seconds * 1e6)))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.xaxis.set_minor_locator(LogLocator(subs=()))
        axes.grid(color="#dddddd", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        figure.legend(handles=list(self._handles(looks)), loc="outside right upper", fontsize=9, frameon=False)
        figure.supxlabel(f"Band: which is fastest, as {self._said}.", x=0.01, ha="left", fontsize=8, color="#444444")
        figure.suptitle(self._title, x=0.01, ha="left", fontsize=11, fontweight="bold")
        return figure

    @property
    def _title(self) -> str:
        both = [what for what, one in (("predicted", self._predicted), ("measured", self._measured)) if one]
        return f"{' and '.join(both).capitalize()} time over message size"

    def _handles(self, looks: Mapping[str, tuple]) -> Iterator[Line2D]:
        for name, (shade, dashes, mark) in looks.items():
            look = {"color": shade, "linestyle": dashes if name in self._predicted else "", "linewidth": 1.8}
            marker = mark if name in self._measured else ""
            yield Line2D([], [], marker=marker, markersize=7, markeredgecolor="white", label=name, **look)
        if self._predicted and self._measured:
            yield Line2D([], [], color="#666666", linewidth=1.8, label="line: predicted")
            yield Line2D([], [], color="#666666", marker="o", linestyle="", label="mark: measured")


def _sorted(table: Mapping[str, Seconds]) -> dict[str, dict[int, float]]:
    return {name: dict(sorted(one.items())) for name, one in table.items()}


def _fastest(table: Mapping[str, dict[int, float]]) -> Iterator[tuple[str, int, int]]:
    """Which one is fastest, at the sizes that all of them have, and from where to where."""
    sizes = sorted(set.intersection(*(set(one) for one in table.values())))
    names = [min(table, key=lambda name, count=count: table[name][count]) for count in sizes]
    begins = [0, *(i for i, (a, b) in enumerate(pairwise(names), start=1) if a != b), len(names)]
    for begin, end in pairwise(begins):
        if end > begin:
            low = _crossing(table, names, sizes, begin) if begin else sizes[0]
            high = _crossing(table, names, sizes, end) if end < len(names) else sizes[-1]
            yield names[begin], low, high


def _crossing(table: Mapping[str, dict[int, float]], names: list[str], sizes: list[int], place: int) -> int:
    """Where the lines cross as the picture has them, straight on logarithmic axes, between place - 1 and place."""
    first, second, low, high = *names[place - 1 : place + 1], *sizes[place - 1 : place + 1]
    before, after = (math.log(table[first][count] / table[second][count]) for count in (low, high))
    part = before / (before - after) if before != after else 0.5
    return round(low * (high / low) ** part)


def _band(axes: Axes, fastest: list[tuple[str, int, int]], shades: Mapping[str, str]) -> None:
    """Who is fastest where, below the lines."""
    low, high = axes.get_ylim()
    axes.set_ylim(low / (high / low) ** (2 * BAND), high)
    across = axes.get_xaxis_transform()  # sizes one way, parts of the height the other
    whole = math.log(axes.get_xlim()[1] / axes.get_xlim()[0])
    for name, low, high in fastest:
        axes.fill_between([low, high], 0, BAND, color=shades[name], linewidth=0, transform=across, zorder=2.6)
        if math.log(high / low) > ROOM * len(name) * whole:
            style = {"ha": "center", "va": "center", "fontsize": 8, "color": ink_on(shades[name])}
            axes.text(math.sqrt(low * high), BAND / 2, name, transform=across, zorder=2.7, **style)
    for _, low, _ in fastest[1:]:
        axes.axvline(low, color="#666666", linewidth=0.8, linestyle=":", zorder=0)
