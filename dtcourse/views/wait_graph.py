"""`WaitGraph`: who waits for whom in a deadlock, as a small picture and as sentences."""

from __future__ import annotations

import base64
import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dtcourse.views.view import DPI, WARN, colour, ink, png

Wait = tuple[int, str, Sequence[int]]  # rank, what it does and on which line, the ranks it waits for


class WaitGraph:
    """Circles are ranks, arrows say who waits for whom. `returned` ranks, which nobody can wait for, have dashed rims.

    waits     (rank, description, peers): `(0, "recv from 3, ring.py, line 12", [3])`
    returned  ranks whose function has returned
    """

    def __init__(self, waits: Iterable[Wait], returned: Collection[int] = ()) -> None:
        self.waits = [(rank, what, tuple(peers)) for rank, what, peers in waits]
        self.returned = set(returned)

    def __str__(self) -> str:
        lines = [f"rank {rank} waits: {what}" for rank, what, _ in self.waits]
        return "\n".join(lines + [f"rank {rank} has returned" for rank in sorted(self.returned)])

    __repr__ = __str__

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        return {"image/png": base64.b64encode(png(self.figure())).decode(), "text/plain": str(self)}

    def figure(self) -> Figure:
        """The ranks on a circle, with the sentences beside it."""
        ranks = sorted({r for rank, _, peers in self.waits for r in (rank, *peers)} | self.returned)
        places = {r: _on_circle(i, len(ranks)) for i, r in enumerate(ranks)}
        words = str(self).splitlines()
        high = max(2.6, 0.24 * len(words) + 0.6)
        wide = max((len(line) for line in words), default=0) * 0.078
        figure = Figure(figsize=(2.9 + wide, high))
        axes = figure.add_axes((0, 0, 2.7 / (2.9 + wide), 1), xlim=(-1.45, 1.45), ylim=(-1.45, 1.45), aspect="equal")
        axes.set_axis_off()
        for rank, _, peers in self.waits:
            for peer in peers:
                _arrow(axes, places[rank], places[peer])
        for rank, place in places.items():
            _circle(axes, rank, place, rank in self.returned)
        step = 0.24 / high
        for i, line in enumerate(words):
            y = 0.5 + (len(words) - 1) * step / 2 - i * step
            figure.text(2.8 / (2.9 + wide), y, line, fontsize=9, va="center", family="DejaVu Sans")
        figure.set_dpi(DPI)
        return figure


def _on_circle(i: int, count: int) -> tuple[float, float]:
    angle = math.pi / 2 - 2 * math.pi * i / max(count, 1)
    return (0.0, 0.0) if count == 1 else (math.cos(angle), math.sin(angle))


def _circle(axes: Axes, rank: int, place: tuple[float, float], returned: bool) -> None:
    rim = {"edgecolor": "#666", "linestyle": "--"} if returned else {"edgecolor": "black", "linestyle": "-"}
    face = "white" if returned else colour(rank)
    axes.scatter(*place, s=620, facecolor=face, linewidths=1.5, zorder=3, **rim)
    shade = "black" if returned else ink(rank)
    axes.text(*place, str(rank), ha="center", va="center", fontsize=13, fontweight="bold", color=shade, zorder=4)
    if returned:
        axes.text(place[0], place[1] - 0.36, "returned", ha="center", va="center", fontsize=8, zorder=4)


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    """Bowed, so that two ranks which wait for each other have an arrow each."""
    style = {"arrowstyle": "-|>", "color": WARN, "linewidth": 2, "mutation_scale": 16}
    style |= {"shrinkA": 15, "shrinkB": 15, "connectionstyle": "arc3,rad=0.16"}
    if start == end:  # a rank that waits for itself
        start, end = (start[0] - 0.12, start[1] + 0.02), (start[0] + 0.12, start[1] + 0.02)
        style |= {"connectionstyle": "arc3,rad=-2.2", "shrinkA": 12, "shrinkB": 12}
    axes.annotate("", end, start, arrowprops=style, zorder=2)
