"""`Cluster`: starts ranks on this machine, runs functions on them, and returns what really happened as a `Run`."""

from __future__ import annotations

import contextlib
import html
import itertools
import linecache
import os
import sys
import threading
import weakref
from collections.abc import Callable, Collection, Mapping
from types import TracebackType
from typing import Any

from dtcourse.backends.link import free_ports
from dtcourse.cluster import door, explain, record, verdict
from dtcourse.cluster.crew import Crew
from dtcourse.cluster.devices import place
from dtcourse.cluster.interrupts import in_one_piece
from dtcourse.cluster.live import Live
from dtcourse.cluster.namespace import run_cell
from dtcourse.cluster.rank import Order
from dtcourse.cluster.shipping import Shipper
from dtcourse.cluster.supervise import Ending, Outcome, Supervisor
from dtcourse.errors import RunError
from dtcourse.network import Link, Network
from dtcourse.run import Run

_cells = itertools.count(1)
_CLOSE_PATIENCE = 5.0  # seconds for a run to end because the cluster is closed
_FREE = (1 << 62).to_bytes(8, sys.byteorder)  # a gate that holds nobody


class Cluster:
    """`world_size` ranks, kept between runs.

    device    "auto", "cpu" or "cuda": where the ranks' tensors live, those that a function is given and those it makes
    backend   "auto", "shared_memory", "gloo" or "nccl": the torch.distributed backend, under the recorder
              auto: a GPU for each rank and NCCL; ranks that share GPUs, through pinned and shared memory, if there
              are fewer; the CPU and shared memory if there are none. The environment variables DTCOURSE_DEVICE and
              DTCOURSE_BACKEND say what "auto" is, if they are set
    link      Link("1 Gbit/s", "50 us"): make the port of each rank that slow, in each direction; a Network: fast links
              inside the nodes, and between them a slow port that the ranks of a node share. Ranks with a link live on
              the CPU
    slow      {2: 3.0}: rank 2's outermost regions, less its waiting inside them, take three times as long
    strict    refuse what NCCL would refuse or hang on: receive from any, tags, sends that cross outside a batch
              (NCCL itself is always strict)
    timeout   seconds that a run may take; None: as long as it likes

    Use it as it is, or with `with`. `close()` ends the ranks, and so does the end of this process, however it comes.
    """

    _latest: weakref.ref[Cluster] | None = None

    def __init__(
        self,
        world_size: int,
        device: str = "auto",
        backend: str = "auto",
        timeout: float | None = None,
        link: Link | Network | None = None,
        slow: Mapping[int, float] | None = None,
        strict: bool = False,
    ) -> None:
        door.check_world_size(world_size)
        door.check_timeout(timeout)
        door.check_link(link, device, backend)
        placement = place(world_size, "cpu" if link else device, backend)
        self.link, self.slow = link, door.checked_slow(slow or {}, world_size)
        self.world_size, self.backend, self.timeout = world_size, placement.backend, timeout
        self.last_run: Run | None = None  # of the latest run, also if it failed
        self._shipper = Shipper()
        self._busy = threading.Lock()
        self._live: Live | None = None
        self._supervisor: Supervisor | None = None  # of the latest run
        self._closing = False
        self._namespace_used = False  # by a %%ranks cell, since the ranks were started
        self._crew = Crew(placement, strict, link, self.slow)
        Cluster._latest = weakref.ref(self)

    @classmethod
    def latest(cls) -> Cluster | None:
        """The cluster that was made last, if it is still there."""
        return cls._latest() if cls._latest else None

    # -- running ------------------------------------------------------------------------------------------------

    def run(
        self,
        function: Callable[..., Any],
        *args: Any,
        watch: bool = False,
        may_die: Collection[int] = (),
        **kwargs: Any,
    ) -> Run:
        """Run `function(*args, **kwargs)` on every rank, and wait for all.

        `per_rank([...])` among the arguments gives each rank its own. `watch=True` keeps what every message held and
        how the tensor arguments stood at each call: for `run.player()`.

        The death of a rank in `may_die` does not end the run (on shared memory). In the other ranks, what needs the
        dead one raises RankDied, a ConnectionError whose `rank` says who died: a message or a collective each time,
        a receive from any rank once for each death. Whoever catches it goes on; `run.dead` lists who died.

        Raises RankError, Deadlock, MismatchError, RankDied, RunTimeout or RunStopped; each carries the record as
        `error.run`, and the cluster is ready again. Raises TypeError if the function or an argument cannot be sent.
        """
        door.check_may_die(may_die, self.world_size, self.backend)
        return self._run(function, args, kwargs, Order.WATCH if watch else 0, frozenset(may_die))

    def step(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Live:
        """Start a watched run whose ranks stand still before each step; returns at once.

        `live.player()` steps it, and so does `live.advance()`; `live.finish()` lets the ranks go on to the end.
        """
        requests = self._shipper.pack(function, args, kwargs, self.world_size)
        self._claim()
        try:
            self._set_gate(0)
            supervisor = self._send(requests, Order.WATCH | Order.HELD)
        except BaseException:
            self._give_up()
            raise
        settle = lambda outcome: self._settle(function, supervisor, outcome)  # noqa: E731
        live = Live(self._crew, supervisor, self._set_gate, settle, self._give_up, _name(function))
        self._live = live
        live.start(self._busy)
        return live

    def run_cell(self, source: str) -> Run:
        """Run the text of a cell on every rank, in the namespace that each rank keeps: what `%%ranks` does.

        Raises what `run` raises.
        """
        filename = f"ranks cell {next(_cells)}"
        linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
        self._namespace_used = True
        return self._run(run_cell, (source, filename), {}, Order.KEEP_GROUPS)

    def _run(
        self,
        function: Callable[..., Any],
        args: tuple,
        kwargs: dict[str, Any],
        order: int,
        may_die: Collection[int] = (),
    ) -> Run:
        requests = self._shipper.pack(function, args, kwargs, self.world_size)
        self._claim()
        try:
            supervisor = self._send(requests, order, may_die)
            run, error = self._settle(function, supervisor, supervisor.supervise())
        except BaseException:  # the stop button again, and between two things: nobody knows what the ranks are at
            self._give_up()
            raise
        self._busy.release()
        if error is not None:
            raise error
        return run

    def _give_up(self) -> None:
        """End ranks that are in an unknown state; the next run starts new ones."""
        try:
            if self._crew.open:
                self._crew.end()
        finally:
            self._busy.release()

    def _claim(self) -> None:
        if not self._crew.ours:
            raise RuntimeError("this cluster belongs to the process that this one was forked from: make a new one")
        if self._closing or not self._crew.open:
            raise RuntimeError("this cluster is closed: make a new one with Cluster(...)")
        if self._live is not None and not self._live.done:
            print(
                f"dtcourse: a stepped run was still held before step {self._live.step + 1}; it is stopped",
                file=sys.stderr,
            )
            self._live.stop()
        if not self._busy.acquire(blocking=False):
            raise RuntimeError("the ranks are busy with another run, in another thread: wait until it has ended")
        try:
            if not self._crew.ready:
                self._start_again()
        except BaseException:
            self._busy.release()
            raise

    def _send(self, requests: list[bytes], order: int, may_die: Collection[int] = ()) -> Supervisor:
        crew = self._crew
        with in_one_piece():  # a tape without a length would be the end of this process: whoever reads it crashes
            for files, reader in zip(crew.tapes, crew.readers, strict=True):
                if not reader.empty():
                    files.erase()
            free_ports(crew.ports, self.world_size)
        supervisor = self._supervisor = Supervisor(crew, self.timeout, may_die)
        if self._closing:  # since this run has claimed the ranks
            supervisor.stop()
        for member, request in zip(crew.members, requests, strict=True):
            with contextlib.suppress(ConnectionError):  # the rank is dead, as the supervisor will see
                member.requests.send_bytes(bytes([order]) + request)
        return supervisor

    def _set_gate(self, step: int | None) -> None:
        os.pwrite(self._crew.gate, _FREE if step is None else step.to_bytes(8, sys.byteorder), 0)

    # -- what came of it ----------------------------------------------------------------------------------------

    def _settle(
        self, function: Callable[..., Any], supervisor: Supervisor, outcome: Outcome
    ) -> tuple[Run, BaseException | None]:
        """The run, or its error; and ranks that are ready again."""
        error = verdict.error(self._crew, supervisor, outcome, closed=self._closing)
        results, unreadable = verdict.results(outcome, self.world_size)
        error = error or unreadable
        run = self._record(function, outcome, results, error)
        self.last_run = run
        self._restore(supervisor, outcome)
        if isinstance(error, RunError):
            error.run = run
        return run, error

    def _record(
        self, function: Callable[..., Any], outcome: Outcome, results: list[Any], error: BaseException | None
    ) -> Run:
        events, texts = record.read(self._crew.readers)
        return Run(
            self.world_size,
            function=_name(function),
            results=results,
            events=events,
            outputs=outcome.outputs,
            sources=texts,
            seconds=outcome.seconds,
            backend=self.backend,
            failure=f"{type(error).__name__}: {str(error).splitlines()[0]}" if error else None,
            waits=getattr(error, "waits", None),
            returned=sorted(getattr(error, "returned", ())),
            dead=outcome.dead,
        )

    def _restore(self, supervisor: Supervisor, outcome: Outcome) -> None:
        """Keep the ranks if they are all at rest; otherwise start new ones."""
        spoilt = any(a.spoilt for a in outcome.answers.values())
        clean = not (supervisor.running or outcome.dead or spoilt)
        if clean and (outcome.ending is not Ending.ANSWERED or any(a.pending for a in outcome.answers.values())):
            supervisor.watch.look()
            clean = not supervisor.watch.unfinished()
            if not clean and outcome.ending is Ending.ANSWERED:
                print(explain.left_over(supervisor.watch), file=sys.stderr)
        if not clean and not self._closing:
            self._start_again()

    def _start_again(self) -> None:
        self._crew.start()
        if self._namespace_used:
            print("dtcourse: the ranks were started again; the variables of %%ranks cells are gone", file=sys.stderr)
        self._namespace_used = False

    # -- life ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the ranks. A run that is going on in another thread, or is stepped, ends with RunStopped."""
        self._closing = True
        if self._supervisor is not None:
            self._supervisor.stop()
        # without a limit, whoever closes from inside the run itself, as in a signal's handler, would wait for himself
        ended = self._busy.acquire(timeout=_CLOSE_PATIENCE)
        try:
            if self._crew.open:
                self._crew.close()
        finally:
            if ended:
                self._busy.release()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _table(self) -> list[tuple[int, str, str, int]]:
        crew = self._crew
        table = [(m.rank, crew.devices[m.rank] + self._slowness(m.rank), crew.how, m.pid) for m in crew.members]
        return table if crew.open else []

    def _slowness(self, rank: int) -> str:
        return f", {self.slow[rank]:g} times slower" if rank in self.slow else ""

    def __repr__(self) -> str:
        if not self._crew.open:
            return f"<Cluster of {self.world_size} ranks, closed>"
        rows = [f"  rank {rank}  {device}  {backend}  pid {pid}" for rank, device, backend, pid in self._table()]
        return "\n".join([f"<Cluster of {self.world_size} ranks{f', {self.link}' if self.link else ''}>", *rows])

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr>{''.join(f'<td>{value}</td>' for value in row)}</tr>" for row in self._table())
        head = "<tr><th>rank</th><th>device</th><th>backend</th><th>pid</th></tr>"
        caption = f"<caption>{html.escape(str(self.link), quote=False)}</caption>" if self.link else ""
        closed = f"<em>cluster of {self.world_size} ranks, closed</em>"
        return f"<table>{caption}{head}{rows}</table>" if rows else closed


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)
