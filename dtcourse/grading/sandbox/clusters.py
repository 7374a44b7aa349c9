"""`SandboxedClusters`: ranks on which somebody else's submission runs, in the place of `submission.Clusters`.

A rank is kept for the runs of one submission as long as it stays clean; no rank ever serves two.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from types import TracebackType
from typing import Any

from dtcourse.cluster import record, verdict
from dtcourse.cluster.shipping import Shipper, per_rank
from dtcourse.cluster.supervise import Ending, Outcome
from dtcourse.errors import RunError, RunTimeout
from dtcourse.grading.sandbox import harness
from dtcourse.grading.sandbox.crew import JailedCrew
from dtcourse.grading.sandbox.keeper import Keeper
from dtcourse.grading.sandbox.relay import Relay
from dtcourse.grading.sandbox.wire import pack, plain
from dtcourse.grading.submission import TIMEOUT
from dtcourse.run import Run

_NEARLY = 0.8  # of the time that a run may take: then a rank that is still busy says where it is


class SandboxedClusters:
    """Ranks for one submission after another. `seed`: decides what the relay holds back, and for how long.

    `weaknesses`: what could not be confined on this machine, in sentences; empty if all is well.
    """

    def __init__(self, timeout: float = TIMEOUT, seed: int = 0) -> None:
        self.timeout, self.seed = timeout, seed
        self._keeper, self._shipper = Keeper.shared(), Shipper()
        self._crew: JailedCrew | None = None
        self._file, self._runs = "", 0  # of the submission that the crew serves

    @property
    def weaknesses(self) -> list[str]:
        return list(self._keeper.weaknesses)

    def of(self, world: int, backend: str = "auto") -> SandboxedCluster:
        """`backend` is whatever a test asks for elsewhere: here the relay carries all messages."""
        return SandboxedCluster(self, world)

    def crew_for(self, file: str) -> JailedCrew:
        """The ranks of the submission that this file is part of."""
        if not self._keeper.alive():
            self._keeper, self._crew = Keeper.shared(), None
        if self._crew is None or file != self._file:
            self.close()
            self._crew, self._file, self._runs = JailedCrew(self._keeper, os.path.dirname(file)), file, 0
        return self._crew

    def run(self, world: int, function: Callable[..., Any], file: str, args: tuple, kwargs: dict[str, Any]) -> Run:
        crew = self.crew_for(file)
        seen = os.path.join(crew.seen, os.path.basename(file))
        requests = self._shipper.pack(function, (seen, *args), kwargs, world)
        given = [[a.values[rank] if isinstance(a, per_rank) else a for a in args] for rank in range(world)]
        self._runs += 1
        crew.gather(world)
        chance = random.Random(f"{self.seed} {self._runs}")
        relay = Relay(crew, self.timeout, [len(plain(values)) for values in given], chance)
        for member, request in zip(crew.members, requests, strict=True):
            words = {"world": world, "patience": _NEARLY * self.timeout}
            if (texts := harness.sources(request, self._keeper.modules)) != member.course:
                words["course"] = member.course = texts
            member.send(pack(words, body=request))
        try:
            outcome = relay.supervise()
            return self._settle(crew, relay, outcome)
        except BaseException:
            crew.end()
            raise
        finally:
            crew.discard()

    def _settle(self, crew: JailedCrew, relay: Relay, outcome: Outcome) -> Run:
        """The run; or its error, with the run."""
        error = verdict.error(crew, relay, outcome, closed=False)  # type: ignore[arg-type]
        if relay.flood:
            error = RunTimeout(relay.flood)
        events, texts = record.read(crew.readers)
        run = Run(
            crew.world_size,
            results=[outcome.answers[r].result if r in outcome.answers else None for r in range(crew.world_size)],
            events=events,
            outputs=outcome.outputs,
            sources=texts,
            seconds=outcome.seconds,
            backend="relay",
            failure=f"{type(error).__name__}: {str(error).splitlines()[0]}" if error else None,
            waits=getattr(error, "waits", None),
            returned=sorted(getattr(error, "returned", ())),
            dead=outcome.dead,
        )
        if error or outcome.ending is not Ending.ANSWERED or relay.tampered or relay.left_over():
            crew.end()
        else:
            crew.rest()
        if isinstance(error, RunError):
            error.run = run
            raise error
        return run

    def close(self) -> None:
        """End all ranks, with all that they have started."""
        if self._crew is not None:
            self._crew.close()
            self._crew = None

    def __enter__(self) -> SandboxedClusters:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class SandboxedCluster:
    """`world` ranks, as `dtcourse.grading.submission.Submission` uses them."""

    def __init__(self, clusters: SandboxedClusters, world: int) -> None:
        self._clusters, self._world = clusters, world

    def run(self, function: Callable[..., Any], file: str, *args: Any, watch: bool = True, **kwargs: Any) -> Run:
        """Run `function(file, *args, **kwargs)` on every rank; `file` is the submission's, and all that is seen of it
        is the folder that it is in. Always watched. Raises what `Cluster.run` raises."""
        return self._clusters.run(self._world, function, file, args, kwargs)
