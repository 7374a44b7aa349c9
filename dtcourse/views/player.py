"""`Player`: the chunks of every rank, step by step, as they really moved; of a recorded run or of a live one."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any, Protocol

import traitlets
from matplotlib.figure import Figure

from dtcourse.run import Run
from dtcourse.views.film import Film, Frame, demand_watched, film
from dtcourse.views.filmstrip import filmstrip
from dtcourse.views.view import View, script

SCRIPTS = ("common.js", "player.js", "player_controls.js")
PAUSE = 1 / 30  # seconds between two batches of frames of a live run


class Live(Protocol):
    """A run that goes on: what `cluster.step` returns."""

    run: Run
    done: bool

    def advance(self) -> None: ...

    def finish(self) -> Any: ...

    def on_change(self, callback: Callable[[], None]) -> None: ...


class Player(View):
    """Plays a watched run; `step` is where it opens, and what is shown then. Given a live run it also steps that."""

    _esm = script(*SCRIPTS)
    step = traitlets.Int(0).tag(sync=True)

    def __init__(self, source: Run | Live, step: int = 0) -> None:
        self._live = None if isinstance(source, Run) else source
        self._source = source
        if self._live is None:
            demand_watched(source)
        shown = self._film()
        self._sent = [frame_data(frame) for frame in shown.frames]
        super().__init__(data=film_data(shown, self._run, self._state()), step=shown.at(step))
        self._lock, self._due = threading.Lock(), False
        self._about: dict[str, Any] = {}  # what was sent last, besides frames
        if self._live is not None:
            self.on_msg(lambda _widget, message, _buffers: self._obey(message))
            self._live.on_change(self._changed)

    @property
    def _run(self) -> Run:
        return self._source if self._live is None else self._live.run

    def _film(self) -> Film:
        return film(self._run, running=self._live is not None and not self._live.done)

    def _state(self) -> str | None:
        return None if self._live is None else "done" if self._live.done else "held"

    def figure(self) -> Figure:
        """The film as one picture."""
        return filmstrip(self._film(), self._run.function)

    @property
    def caption(self) -> str:
        frames = self._film().frames
        steps = f"{len(frames) - 1} step{'s' if len(frames) != 2 else ''}"
        title = f"Chunk player of {self._run.function or 'a run'} on {self._run.world_size} ranks, {steps}."
        end = frames[-1]
        return " ".join(
            [title, end.caption, *end.notes, *([f"Failed: {self._run.failure}"] if self._run.failure else [])]
        )

    # -- the live run -------------------------------------------------------------------------------------------

    def _obey(self, message: dict[str, Any]) -> None:
        """A message from the picture."""
        if message.get("kind") == "advance":
            self._live.advance()
        elif message.get("kind") == "finish":
            threading.Thread(target=self._finish, daemon=True).start()
        elif message.get("kind") == "hello":
            self._publish(everything=True)

    def _finish(self) -> None:
        with contextlib.suppress(Exception):  # how the run ended is in the run: the next frames show it
            self._live.finish()

    def _changed(self) -> None:
        """Called from a thread of the live run, perhaps a thousand times a second: gather, then send once."""
        with self._lock:
            if self._due:
                return
            self._due = True
        timer = threading.Timer(PAUSE, self._publish)
        timer.daemon = True
        timer.start()

    def _publish(self, everything: bool = False) -> None:
        """Send the frames that are new or other than they were, as a message: a synced list would send all of them."""
        with self._lock:
            self._due = False
            shown = self._film()
            frames = [frame_data(frame) for frame in shown.frames]
            fresh = [
                [number, frame]
                for number, frame in enumerate(frames)
                if everything or number >= len(self._sent) or frame != self._sent[number]
            ]
            jump = self._live.done and len(frames) > len(self._sent) + 1
            self._sent = frames
            about = film_data(shown, self._run, self._state())
            del about["frames"]
            if not fresh and about == self._about:
                return
            self._about = about
            self.send({"kind": "frames", "film": about, "frames": fresh, "length": len(frames), "jump": jump})


def film_data(shown: Film, run: Run, live: str | None = None) -> dict[str, Any]:
    """The film as the plain data that player.js reads."""
    row = next((row for frame in shown.frames for row in frame.rows if row), ())
    return {
        "title": run.function or "a run",
        "world": shown.world,
        "decoded": shown.decoded,
        "spans": [[chunk.start, chunk.stop] for chunk in row],
        "frames": [frame_data(frame) for frame in shown.frames],
        "lines": [{"place": s.place, "text": s.text, "before": s.before, "after": s.after} for s in shown.lines],
        "failure": shown.failure,
        "live": live,
    }


def frame_data(frame: Frame) -> dict[str, Any]:
    return {
        "title": frame.title,
        "caption": frame.caption,
        "notes": list(frame.notes),
        "lines": [list(line) for line in frame.lines],
        "waits": [{"rank": wait.rank, "what": wait.what} for wait in frame.waits],
        "messages": [
            {"from": m.sender, "to": m.receiver, "chunk": m.chunk, "what": m.what, "bytes": m.bytes, "times": m.times}
            | {"arrived": m.arrived, "counts": list(m.counts)}
            for m in frame.messages
        ],
        "rows": [
            [
                {
                    "span": [chunk.start, chunk.stop],
                    "pieces": [[p.start, p.stop, p.counts and list(p.counts), p.moved] for p in chunk.pieces],
                    "numbers": list(chunk.numbers),
                    "complete": chunk.complete,
                }
                for chunk in row
            ]
            for row in frame.rows
        ],
    }
