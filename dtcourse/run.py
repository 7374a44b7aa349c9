"""`Run`: the record of what a function really did on the ranks. Everything that explains or grades reads this."""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dtcourse import raw
from dtcourse.events import MARK, RECV, REGION, SEND, Event, Line
from dtcourse.trace import trace_events

FORMAT = 1
# A zip can hold a thousand times its own size, and a small file must not fill a laptop's memory. A record shrinks to
# a twentieth or so. What would shrink to less than a hundredth, tensors of zeros say, is saved as it is.
SHRINKS = 100  # times, at most, for a file that is read
ALWAYS_READ = 64 << 20  # bytes, unpacked: every laptop has as much


class Run:
    """What `cluster.run` returns, and what the errors of a run carry as `error.run`.

    results   what each rank returned, in rank order (None for a rank that did not return)
    events    list of `Event`, in the order in which they were posted
    outputs   what each rank printed (the end of it, if it printed more than is kept)
    sources   file name -> text, of every file that an event's line is in
    seconds   from the start of the run to its end
    failure   one line that says how the run failed, or None
    waits     after a deadlock: (rank, what it waits in, the ranks it waits for), and the ranks that had `returned`
    dead      the ranks that died, in the order in which they did
    given     the tensors among the arguments of each rank, as they were sent; empty if nobody has kept them
    """

    def __init__(
        self,
        world_size: int,
        *,
        function: str = "",
        results: list[Any] | None = None,
        events: list[Event] | Callable[[], list[Event]] = (),  # type: ignore[assignment]
        outputs: list[str] | None = None,
        sources: dict[str, str] | None = None,
        seconds: float = 0.0,
        backend: str = "",
        failure: str | None = None,
        waits: list[tuple[int, str, tuple[int, ...]]] | None = None,
        returned: list[int] | None = None,
        dead: list[int] | None = None,
        given: Sequence[Sequence[torch.Tensor]] = (),
    ) -> None:
        self.world_size = world_size
        self.function = function
        self.results = results if results is not None else [None] * world_size
        self.outputs = outputs if outputs is not None else [""] * world_size
        self.sources = sources if sources is not None else {}
        self.seconds = seconds
        self.backend = backend
        self.failure = failure
        self.waits = waits if waits is not None else []
        self.returned = returned if returned is not None else []
        self.dead = dead if dead is not None else []
        self.given = given
        self._events = events

    @cached_property
    def events(self) -> list[Event]:
        return self._events() if callable(self._events) else list(self._events)

    # -- reading ------------------------------------------------------------------------------------------------

    def messages(self, rank: int | None = None) -> list[Event]:
        """The sends, in order; of one rank, if one is named. Control traffic is left out."""
        return [e for e in self.events if e.kind == SEND and not e.control and rank in (None, e.rank)]

    def receives(self, rank: int | None = None) -> list[Event]:
        """The receives, in order; of one rank, if one is named. Control traffic is left out."""
        return [e for e in self.events if e.kind == RECV and not e.control and rank in (None, e.rank)]

    def bytes_sent(self, rank: int) -> int:
        """Bytes that `rank` sent in messages. What a library collective moves inside itself is not visible here."""
        return sum(e.bytes for e in self.messages(rank))

    def bytes_received(self, rank: int) -> int:
        """Bytes that reached `rank` in messages; what never arrived is counted at its sender alone."""
        return sum(e.bytes for e in self.receives(rank) if not e.pending)

    def waited(self, rank: int) -> float:
        """Seconds that `rank` stood still in sends, receives and collectives, barriers among them.

        Waits of several threads that overlap count once. A wait that never ended lasts to the end of the record.
        """
        end, waited, now = self.span[1], 0, 0
        waits = [(e.wait_from, e.wait_to or end) for e in self.events if e.rank == rank and e.wait_from is not None]
        for since, until in sorted(waits):
            waited += max(until - max(since, now), 0)
            now = max(now, until)
        return waited / 1e9

    @cached_property
    def span(self) -> tuple[int, int]:
        """The first and the last moment of the record, in nanoseconds of the events' clock."""
        start = min((e.posted for e in self.events), default=0)
        times = (t for e in self.events for t in (e.posted, e.ended, e.wait_from, e.wait_to) if t is not None)
        end = max(times, default=0)
        if any(e.pending for e in self.events):  # who waits for ever writes no more: the run went on until it was ended
            end = max(end, start + int(self.seconds * 1e9))
        return start, end

    def traffic_matrix(self) -> np.ndarray:
        """Bytes by (sender, receiver), shape (world, world)."""
        matrix = np.zeros((self.world_size, self.world_size), dtype=np.int64)
        for e in self.messages():
            matrix[e.rank, e.peer] += e.bytes
        return matrix

    def marks(self, name: str, rank: int | None = None) -> list[Event]:
        """The marks called `name`; their values are in `labels`."""
        return [e for e in self.events if e.kind == MARK and e.op == name and rank in (None, e.rank)]

    def regions(self, name: str | None = None, rank: int | None = None) -> list[Event]:
        """The regions, of one name or one rank if given."""
        return [e for e in self.events if e.kind == REGION and name in (None, e.op) and rank in (None, e.rank)]

    def source_line(self, line: Line | None) -> str:
        """The text of a line, stripped; empty if its file was not kept."""
        text = self.sources.get(line.file, "").splitlines() if line else []
        return text[line.number - 1].strip() if line and 0 < line.number <= len(text) else ""

    def __repr__(self) -> str:
        sent = sum(e.bytes for e in self.messages())
        how = f"failed: {self.failure}" if self.failure else "completed"
        return (
            f"<Run of {self.function or 'a function'} on {self.world_size} ranks, {how} in {self.seconds:.3f} s; "
            f"{len(self.messages())} messages, {sent:,} bytes>"
        )

    # -- views (the one edge upwards: imported when asked for) ---------------------------------------------------

    def player(self, step: int = 0) -> Any:
        """The chunks, step by step, as they really moved. Needs `run(..., watch=True)`."""
        return open_player(self, step)

    def timeline(self) -> Any:
        """Who computes, sends and waits, over time."""
        from dtcourse.views.timeline import Timeline

        return Timeline(self)

    def traffic(self) -> Any:
        """Who sent how much to whom."""
        from dtcourse.views.traffic import Traffic

        return Traffic(self)

    def staleness(self, bound: int | None = None) -> Any:
        """How stale the gradients were that a parameter server applied; `bound`, in updates, is drawn if given.

        Reads `mark("update", version=, worker=, step=, staleness=)`, which the server makes for each gradient.
        """
        from dtcourse.views.staleness import Staleness

        return Staleness(self, bound)

    def pipeline(self, plan: Any = None, step: int = -1) -> Any:
        """Which rank did which action of a pipeline when, over the `plan` that `simulate(schedule)` made, if given.

        Reads `region("forward", microbatch=, stage=)` and the same of "backward", "input" and "weight", which
        `Pipeline` makes. Of a run with several steps the last is shown, unless `step` tells another, from 0.
        """
        from dtcourse.views.pipeline import chart

        return chart(self, plan, step)

    def activations(self, plan: Any = None, step: int = -1) -> Any:
        """How many activations each rank of a pipeline kept, over time; `plan` and `step` as in `pipeline`."""
        from dtcourse.views.activations import Activations

        return Activations(self, plan, step)

    def versions(self, step: int = -1) -> Any:
        """How old the weights were that each micro-batch of an asynchronous pipeline met; `step` as in `pipeline`.

        Reads the label `version` of the regions.
        """
        from dtcourse.views.versions import Versions

        return Versions(self, step)

    def overlap(self, step: int = -1) -> Any:
        """Backward and communication of each rank on one axis, and how much of the second lies under the first.

        Reads `region("backward")` and `region("all-reduce", bucket=)`, or without such the messages and collectives.
        What lies in a `region("wait")` inside of backward is taken out of it.
        Of a run with several steps the last is shown, unless `step` tells another, from 0.
        """
        from dtcourse.views.overlap import overlap

        return overlap(self, step)

    def wait_graph(self) -> Any:
        """After a deadlock: who waits for whom."""
        from dtcourse.views.wait_graph import WaitGraph

        return WaitGraph(self.waits, self.returned)

    def page(self, path: str | Path, plan: Any = None) -> Path:
        """Write player, timeline, traffic, and what there is of pipeline, overlap, loss, staleness, as one HTML file.

        The file needs no kernel and no network. `plan` is that of `pipeline`.
        """
        from dtcourse.views.page import write_page

        return write_page(self, Path(path), plan=plan)

    # -- files --------------------------------------------------------------------------------------------------

    def chrome_trace(self, path: str | Path) -> Path:
        """Write the Chrome trace format (opens in Perfetto): a process per rank, arrows from send to receive."""
        path = Path(path)
        path.write_text(json.dumps({"traceEvents": list(trace_events(self)), "displayTimeUnit": "ms"}, allow_nan=False))
        return path

    def save(self, path: str | Path) -> Path:
        """Write the run as a zip of JSON, raw tensors and sources. Nothing in it can run code.

        What is neither plain data nor a plain tensor (a sparse or quantized one, say) is kept as its `repr`, a text.
        """
        path, tensors = Path(path), {}

        def encode(value: Any) -> Any:
            if isinstance(value, torch.Tensor) and raw.is_plain(value):
                name = f"tensors/{len(tensors)}"
                tensors[name] = raw.to_bytes(value)
                return {"tensor": name, "dtype": raw.dtype_name(value.dtype), "shape": list(value.shape)}
            if isinstance(value, (list, tuple)):  # a named tuple or a torch.Size comes back as a tuple
                return {"list" if isinstance(value, list) else "tuple": [encode(v) for v in value]}
            if isinstance(value, dict) and all(isinstance(k, str) for k in value):
                return {"dict": {k: encode(v) for k, v in value.items()}}
            if value is None or isinstance(value, (bool, int, float, str)):
                return value
            return {"repr": repr(value)}

        def encode_event(event: Event) -> dict[str, Any]:
            values = {f.name: getattr(event, f.name) for f in fields(Event)}
            return {k: encode(v) for k, v in values.items() if k != "line"} | {
                "line": asdict(event.line) if event.line else None
            }

        document = {
            "format": FORMAT,
            **{k: getattr(self, k) for k in ("world_size", "function", "outputs", "seconds", "backend", "failure")},
            **{k: getattr(self, k) for k in ("waits", "returned", "dead")},
            "results": encode(list(self.results)),
            "events": [encode_event(e) for e in self.events],
            "sources": list(self.sources),
        }
        texts = {f"sources/{number}": text for number, text in enumerate(self.sources.values())}
        for compression in (zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED):
            with zipfile.ZipFile(path, "w", compression) as archive:
                for name, content in ({"run.json": json.dumps(document)} | texts | tensors).items():
                    archive.writestr(name, content)
                size, most = _sizes(archive)
            if size <= most:  # what is saved can be loaded
                break
        return path

    @staticmethod
    def load(path: str | Path) -> Run:
        """Read a saved run. What was neither a plain tensor nor plain data comes back as its `repr`."""
        try:
            with zipfile.ZipFile(path) as archive:
                size, most = _sizes(archive)
                if size > most:
                    raise ValueError(f"{size:,} bytes, unpacked, and {most:,} are the most for a file of its size")
                document = json.loads(archive.read("run.json"))
                if document["format"] != FORMAT:
                    raise ValueError(f"format {document['format']}, and this dtcourse reads {FORMAT}")
                return _decode_run(document, archive)
        except OSError:
            raise
        except _NO_RUN as problem:
            raise ValueError(f"{path} is not a saved run: {problem}") from None


# whatever a file that only looks like one can lead to
_NO_RUN = (
    ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError, EOFError, MemoryError,
    zipfile.BadZipFile, zlib.error,
)  # fmt: skip


def open_player(run: Any, step: int = 0) -> Any:
    """The chunk player of a `Run`, or of a live run that is being stepped."""
    from dtcourse.views.player import Player

    return Player(run, step=step)


def _sizes(archive: zipfile.ZipFile) -> tuple[int, int]:
    """Bytes that the archive says it holds, unpacked; and the most that is read of a file of its size."""
    size = archive.fp.seek(0, os.SEEK_END)  # of the file itself: what a made-up archive says of its parts is anything
    return sum(entry.file_size for entry in archive.infolist()), max(ALWAYS_READ, SHRINKS * size)


def _decode_run(document: dict[str, Any], archive: zipfile.ZipFile) -> Run:
    unread = set(archive.namelist())
    world_size = document["world_size"]
    if type(world_size) is not int or not 1 <= world_size <= 1 << 16:
        raise ValueError(f"a run has ranks, not {world_size!r}")

    def decode(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        if "tensor" in value:
            unread.remove(value["tensor"])  # each is there once: a small file must not fill the memory
            return raw.from_bytes(archive.read(value["tensor"]), value["dtype"], value["shape"])
        ((kind, content),) = value.items()
        if kind == "dict":
            return {k: decode(v) for k, v in content.items()}
        if kind in ("list", "tuple"):
            return (list if kind == "list" else tuple)(decode(v) for v in content)
        return content  # a repr

    def decode_event(values: dict[str, Any]) -> Event:
        line = Line(**values["line"]) if values["line"] else None
        event = Event(**{k: decode(v) for k, v in values.items() if k != "line"}, line=line)
        if type(event.rank) is not int or not 0 <= event.rank < world_size:
            raise ValueError(f"an event of rank {event.rank!r}, and there are {world_size} ranks")
        return event

    return Run(
        world_size,
        results=decode(document["results"]),
        events=[decode_event(e) for e in document["events"]],
        sources={name: archive.read(f"sources/{i}").decode() for i, name in enumerate(document["sources"])},
        waits=[(rank, what, tuple(needs)) for rank, what, needs in document["waits"]],
        dead=document.get("dead", []),  # younger than the format
        **{k: document[k] for k in ("function", "outputs", "seconds", "backend", "failure", "returned")},
    )
