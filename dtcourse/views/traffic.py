"""`Traffic`: who sent how much to whom, as a matrix of sender and receiver."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from dtcourse.events import COLLECTIVE
from dtcourse.run import Run
from dtcourse.views.view import View, script
from dtcourse.views.words import size

SCRIPTS = ("common.js", "traffic.js")


class Traffic(View):
    """Draws any run, watched or not. It counts messages: what a library collective sends inside is not visible."""

    _esm = script(*SCRIPTS)

    def __init__(self, run: Run) -> None:
        self._run = run
        super().__init__(data=traffic_data(run))

    def figure(self) -> Figure:
        return _figure(self._run.traffic_matrix(), self._run.function, self.data["note"])

    @property
    def caption(self) -> str:
        matrix = self._run.traffic_matrix()
        sent, received = matrix.sum(1), matrix.sum(0)
        text = (
            f"Traffic of {self._run.function or 'a run'}: {size(int(matrix.sum()))} in {self.data['total']} messages. "
        )
        if matrix.sum():
            text += f"Most sent: rank {sent.argmax()}, {size(int(sent.max()))}. "
            text += f"Most received: rank {received.argmax()}, {size(int(received.max()))}. "
        return (text + self.data["note"]).strip()


def traffic_data(run: Run) -> dict[str, Any]:
    """The matrix as the plain data that traffic.js reads."""
    counts = np.zeros((run.world_size, run.world_size), dtype=int)
    for e in run.messages():
        counts[e.rank, e.peer] += 1
    return {
        "title": run.function or "a run",
        "world": run.world_size,
        "matrix": run.traffic_matrix().tolist(),
        "counts": counts.tolist(),
        "total": int(counts.sum()),
        "note": _note(run),
    }


def _note(run: Run) -> str:
    """What the matrix cannot know, and what it counts although nobody got it."""
    notes = []
    library = [e for e in run.events if e.kind == COLLECTIVE and not e.control]
    calls = Counter(op for op, _, _ in {(e.op, e.group, e.sequence) for e in library})
    if calls:
        names = ", ".join(f"{name} ({times} call{'s' if times > 1 else ''})" for name, times in sorted(calls.items()))
        notes.append(f"Not counted, because it happens inside the library: {names}.")
    if lost := [e for e in run.messages() if e.pending]:
        notes.append(f"Counted, but never arrived: {len(lost)} of the messages, {size(sum(e.bytes for e in lost))}.")
    return " ".join(notes)


def _figure(matrix: np.ndarray, title: str, note: str) -> Figure:
    world = len(matrix)
    side = 2.2 + 0.55 * world
    figure = Figure(figsize=(side + 0.6, side + (0.3 if note else 0)), layout="constrained")
    axes = figure.subplots()
    full = np.full((world + 1, world + 1), np.nan)
    full[:world, :world] = matrix
    axes.imshow(full, cmap="Blues", vmin=0, vmax=max(matrix.max() * 1.25, 1))
    sent, received = matrix.sum(1), matrix.sum(0)
    font = 9 if world <= 6 else 7 if world <= 10 else 5
    for i in range(world):
        for j in range(world):
            dark = matrix[i, j] > 0.6 * matrix.max() * 1.25
            text = size(int(matrix[i, j])) if matrix[i, j] else "·"
            axes.text(j, i, text, ha="center", va="center", fontsize=font, color="white" if dark else "black")
        axes.text(world, i, size(int(sent[i])), ha="center", va="center", fontsize=font, fontweight="bold")
        axes.text(i, world, size(int(received[i])), ha="center", va="center", fontsize=font, fontweight="bold")
    axes.text(world, world, size(int(matrix.sum())), ha="center", va="center", fontsize=font, fontweight="bold")
    names = [*map(str, range(world)), "sum"]
    axes.set_xticks(range(world + 1), names)
    axes.set_yticks(range(world + 1), names)
    axes.set_xlabel("receiver")
    axes.set_ylabel("sender")
    axes.xaxis.set_label_position("top")
    axes.tick_params(length=0, top=True, labeltop=True, bottom=False, labelbottom=False)
    axes.spines[:].set_visible(False)
    figure.suptitle(f"{title or 'run'}: bytes sent", fontsize=11, fontweight="bold")
    if note:
        figure.supxlabel(note, fontsize=8)
    return figure
