"""The film as one static picture: a panel per frame, drawn with matplotlib, for where no JavaScript runs.

Everything lies in one pair of axes and is gathered into a few collections first: thousands of separate patches and
texts would make every display of a player a second slower.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from dtcourse.views.chunks import Chunk, Piece
from dtcourse.views.film import Film, Message
from dtcourse.views.view import WARN, colour, ink

WIDE, HIGH = 0.86, 0.62  # a chunk's box, of its column and its row
LEFT, TOP, RIGHT = 0.8, 0.5, 0.35  # round a panel: ranks, title, the way of far messages

Point = tuple[float, float]


def filmstrip(film: Film, title: str = "") -> Figure:
    """A panel per frame; of a long film the first, the last, and some in between."""
    count, world = len(film.frames), film.world
    most = 12 if world <= 4 else 9 if world <= 8 else 4
    chosen = range(count) if count <= most else sorted({round(i * (count - 1) / (most - 1)) for i in range(most)})
    columns = min(4 if world <= 4 else 3 if world <= 8 else 2, len(chosen))
    lines = math.ceil(len(chosen) / columns)
    inch = (0.62 if world <= 4 else 0.36 if world <= 8 else 0.24, 0.4 if world <= 8 else 0.26)  # of a chunk, of a row
    panel = (LEFT + world + RIGHT, TOP + world)
    width, height = panel[0] * columns * inch[0], panel[1] * lines * inch[1] + 0.35
    figure = Figure(figsize=(max(width, 4.5), height))
    axes = figure.add_axes((0, 0, 1, 1 - 0.35 / height), xlim=(0, panel[0] * columns), ylim=(panel[1] * lines, 0))
    axes.set_axis_off()
    strip = _Strip(film, inch[0])
    for i, number in enumerate(chosen):
        strip.panel(number, panel[0] * (i % columns) + LEFT, panel[1] * (i // columns) + TOP)
    strip.draw(axes)
    left_out = "" if count <= most else f" ({len(chosen)} of {count} frames)"
    name = f"{title or 'run'} on {world} rank{'s' if world > 1 else ''}{left_out}"
    figure.text(0.006, 1 - 0.1 / height, name, fontsize=11, fontweight="bold", va="top")
    return figure


@dataclass
class _Strip:
    """What is to be drawn, sorted by how matplotlib draws it fastest."""

    film: Film
    inch: float
    stripes: list[Rectangle] = field(default_factory=list)
    boxes: list[Rectangle] = field(default_factory=list)
    marks: dict[tuple[str, str, float], list[Point]] = field(default_factory=lambda: defaultdict(list))
    paths: dict[bool, list[list[Point]]] = field(default_factory=lambda: defaultdict(list))
    texts: list[tuple[float, float, str, dict]] = field(default_factory=list)

    def panel(self, number: int, x: float, y: float) -> None:
        frame = self.film.frames[number]
        self.texts.append((x, y - 0.2, frame.title, {"fontsize": 9, "ha": "left", "va": "center"}))
        for rank, row in enumerate(frame.rows):
            middle = (x - 0.35, y + rank + HIGH / 2)
            self.marks["o", colour(rank), 150].append(middle)
            self.marks[f"${rank}$", ink(rank), 30 if rank < 10 else 55].append(middle)
            if any(wait.rank == rank for wait in frame.waits):
                style = {"fontsize": 6, "ha": "center", "va": "top", "color": WARN, "fontweight": "bold"}
                self.texts.append((x - 0.35, y + rank + HIGH, "waits", style))
            for c, chunk in enumerate(row):
                self.chunk(chunk, x + c, y + rank)
        for message in frame.messages:
            self.message(message, x, y)

    def chunk(self, chunk: Chunk, x: float, y: float) -> None:
        edge = (
            {"edgecolor": "black", "linewidth": 2.0} if chunk.complete else {"edgecolor": "#9aa0ab", "linewidth": 0.7}
        )
        self.boxes.append(Rectangle((x, y), WIDE, HIGH, facecolor="none", **edge))
        for piece in chunk.pieces:
            self.piece(piece, chunk, x, y)
        if chunk.complete:
            self.marks["o", "black", 45].append((x + WIDE, y))
            self.marks["$✓$", "white", 18].append((x + WIDE, y))
        if not chunk.pieces and chunk.numbers:
            text = chunk.numbers[0] + (" …" if chunk.stop - chunk.start > 1 else "")
            size = min(7, self.inch * 62 / len(text))
            self.texts.append((x + WIDE / 2, y + HIGH / 2, text, {"fontsize": size, "ha": "center", "va": "center"}))

    def piece(self, piece: Piece, chunk: Chunk, x: float, y: float) -> None:
        per = WIDE / (chunk.stop - chunk.start)
        left, room = x + (piece.start - chunk.start) * per, (piece.stop - piece.start) * per
        foot, slot = 0.0, room / self.film.world
        if piece.counts is None or (piece.moved != 0 and any(piece.counts)):
            foot, words = 0.2, "?" if piece.moved is None else f"[{piece.start + piece.moved}]"
            style = {"fontsize": 5.5, "ha": "center", "va": "center", "color": WARN, "fontweight": "bold"}
            self.texts.append((left + room / 2, y + HIGH - 0.11, words, style))
        for rank, times in enumerate(piece.counts or ()):
            if not times:
                continue
            at, high = left + rank * slot, HIGH - foot
            edge = {"edgecolor": WARN, "linewidth": 1.4} if times > 1 else {"edgecolor": "white", "linewidth": 0.3}
            self.stripes.append(Rectangle((at, y), slot, high, facecolor=colour(rank), **edge))
            if slot * self.inch > 0.1:
                label = f"${rank}$" if times == 1 else f"${rank}×{times}$"
                self.marks[label, ink(rank), 18 if times == 1 else 60].append((at + slot / 2, y + high / 2))

    def message(self, m: Message, x: float, y: float) -> None:
        """Straight to the next row; beside the chunks to a farther one; beside the ranks if it is no chunk."""
        down, near = m.receiver > m.sender, abs(m.receiver - m.sender) == 1
        top, bottom = y + m.sender, y + m.receiver
        if m.chunk is None:
            side, edge = x - 0.7, x - 0.55
        else:
            side, edge = x + m.chunk + 0.93, x + m.chunk + WIDE
        if m.chunk is not None and near:
            middle = x + m.chunk + WIDE / 2
            way = [(middle, top + (HIGH if down else 0)), (middle, bottom + (-0.1 if down else HIGH + 0.1))]
            head = "v" if down else "^"
        else:
            bend = 0.22 if down else -0.22  # leave and arrive at different heights, so that ways of one column differ
            rows = (top + HIGH / 2 + bend, bottom + HIGH / 2 - bend)
            way = [(edge, rows[0]), (side, rows[0]), (side, rows[1]), (edge, rows[1])]
            head = ">" if m.chunk is None else "<"
        self.paths[m.arrived].append(way)
        self.marks[head if m.arrived else "x", "black" if m.arrived else WARN, 18].append(way[-1])

    def draw(self, axes: Axes) -> None:
        axes.add_collection(PatchCollection(self.stripes, match_original=True, zorder=1))
        axes.add_collection(PatchCollection(self.boxes, match_original=True, zorder=2))
        for arrived, ways in self.paths.items():
            style = {"colors": "black", "linestyles": "-"} if arrived else {"colors": WARN, "linestyles": ":"}
            axes.add_collection(LineCollection(ways, linewidths=0.9, zorder=3, **style))
        for (marker, shade, area), points in self.marks.items():
            scale = 1 if self.inch > 0.5 else 0.75
            width = 1.2 if marker == "x" else 0
            axes.scatter(
                *zip(*points, strict=True), s=area * scale, marker=marker, color=shade, linewidths=width, zorder=4
            )
        for x, y, text, style in self.texts:
            axes.text(x, y, text, zorder=5, **style)
