"""`Submission`: somebody's file, whose functions run on ranks and come back as a `Run`. It is never imported here."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from dtcourse.cluster import Cluster, per_rank
from dtcourse.errors import Deadlock, MismatchError, RankError, RunError, RunTimeout
from dtcourse.grading.findings import CheckFailed, NotWritten, elements_each, situation
from dtcourse.grading.glance import NOT_WRITTEN, no_function, uses
from dtcourse.grading.loading import call, examine
from dtcourse.grading.reading import last_step
from dtcourse.run import Run

TIMEOUT = 10.0  # seconds for a run that takes a twentieth of one: whoever reaches it is in an endless loop


@dataclass(frozen=True)
class Contents:
    """What importing the file gave: the names that can be called, or what went wrong."""

    functions: Sequence[str] = ()
    problem: str | None = None


class Clusters:
    """One cluster per world size and backend, started when first asked for, and kept: a run then costs milliseconds."""

    def __init__(self, timeout: float = TIMEOUT) -> None:
        self.timeout = timeout
        self._clusters: dict[tuple[int, str], Cluster] = {}

    def of(self, world: int, backend: str = "auto") -> Cluster:
        if (world, backend) not in self._clusters:
            cluster = Cluster(world, device="cpu", backend=backend, timeout=self.timeout)
            self._clusters[world, backend] = cluster
        return self._clusters[world, backend]

    def close(self) -> None:
        for cluster in self._clusters.values():
            cluster.close()
        self._clusters.clear()

    def __enter__(self) -> Clusters:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class Submission:
    """The functions of one file. All that can be wrong with it is raised as CheckFailed, in words.

    `seed`: of what a test draws; whoever grades draws for each submission, and keeps the seed.
    """

    def __init__(self, file: Path, clusters: Clusters, seed: int = 0) -> None:
        self.seed = seed
        self.file, self._clusters = Path(file).resolve(), clusters
        self._contents: Contents | None = None
        self._endless: dict[str, CheckFailed] = {}  # function -> how it ran out of time: it is not run again
        self.share = 0.0  # of the points of the test that runs: what is earned even if it fails from here on

    def run(
        self,
        name: str | tuple[str, ...],
        *args: Any,
        world: int,
        group: Sequence[int] | None = None,
        around: Callable[..., Any] | None = None,
        given: str | None = None,
        backend: str = "auto",
    ) -> Run:
        """Run the function `name` of the file on `world` ranks, watched; `per_rank(...)` among the arguments is meant.

        `group`: the function gets this sub-group as `group`, and only its ranks call it. `around`: what each rank calls
        in its place, with the function before the arguments: a training step, say, or another rank's part. `given`:
        what the ranks are given, in words, if it is not one tensor each. `backend`: "gloo" refuses, as NCCL does,
        tensors that are not contiguous. Several names: `around` gets a tuple of their functions. Raises CheckFailed if
        the run does not complete (and NotWritten for a stub), with the record of what happened until then; if ranks
        wait for each other, with what `around` says of itself.
        """
        __tracebackhide__ = True
        names = (name,) if isinstance(name, str) else name
        for one in names:
            self._demand(one)
        try:
            run = self._clusters.of(world, backend).run(
                call, str(self.file), name, *args, group=group, around=around, watch=True
            )
        except RunError as error:
            error.run.function, error.run.given = " and ".join(names), _given(args, world)
            called = situation(error.run.function, world, given or _each(args))
            raise self._failed(error, called, group, around) from None
        run.function, run.given = " and ".join(names), _given(args, world)
        return run

    def begin(self) -> None:
        """A new test begins: nothing of its points is earned yet."""
        self.share = 0.0

    def earn(self, share: float) -> None:
        """The test goes on, and `share` of its points, more than 0 and less than 1, are earned from here on."""
        if not 0 < share < 1:
            raise ValueError(f"earn({share!r}): a part of the points of a test is more than 0 and less than 1")
        self.share = max(self.share, share)

    def _demand(self, name: str) -> None:
        """Raise CheckFailed unless the file can be imported and has this function."""
        __tracebackhide__ = True
        if self._contents is None:
            self._contents = self._examine()
        if self._contents.problem:
            raise CheckFailed(f"{self.file.name} cannot be imported: {self._contents.problem}")
        if name not in self._contents.functions:
            raise CheckFailed(no_function(self.file, name))
        for endless in uses(self.file, name) & self._endless.keys() if self._endless else ():
            failed = self._endless[endless]  # time is up once, not once for each that calls it
            said = f"{failed}\nThat was in an earlier test; {endless} is not run again."
            raise CheckFailed(said, failed.run, failed.step)

    def _examine(self) -> Contents:
        if not self.file.is_file():
            return Contents(problem=f"there is no such file in {self.file.parent}")
        try:
            return Contents(*self._clusters.of(1).run(examine, str(self.file)).results[0])
        except RunTimeout as error:
            line = str(error).splitlines()[-2].strip().removeprefix("rank 0 ")
            return Contents(problem=f"it does not come to an end; after {self._clusters.timeout:g} s it {line}")
        except RunError as error:
            return Contents(problem=str(error).splitlines()[0])

    def _failed(
        self, error: RunError, called: str, group: Sequence[int] | None, around: Callable[..., Any] | None
    ) -> CheckFailed:
        text, run = str(error).split("\n\nThe traceback of rank")[0], error.run
        if isinstance(error, RankError) and (
            stub := re.match(rf"rank \d+ raised NotImplementedError: {NOT_WRITTEN}(.*)", text)
        ):
            return NotWritten(f"{NOT_WRITTEN}{stub[1]}", run)
        if isinstance(error, RankError):
            text = re.sub(r"\n  at [^\n]*\btest_\w+\.py, line [^\n]*", "", text)  # where `around` stands says nothing
        if isinstance(error, Deadlock):
            text = text.split("\nAs a picture: cluster.")[0]  # the reader has no `cluster` here
        if group is not None and isinstance(error, (Deadlock, MismatchError, RankError)):
            members = ", ".join(map(str, group))
            text += f"\nOnly ranks {members} call it: does each send, receive and collective get `group`?"
        if isinstance(error, RunTimeout):
            text = text.rsplit("\n", 1)[0]  # without the advice to wait longer: this is an endless loop
        said = getattr(around, "func", around).__doc__ if around else None  # a `partial` has the words of its function
        if said and _takes_two(error, text):
            text += "\n" + " ".join(said.split())
        failed = CheckFailed(f"{called}: {text}", run, last_step(run))
        if isinstance(error, RunTimeout):
            self._endless[run.function] = failed
        return failed


def _takes_two(error: RunError, text: str) -> bool:
    """Whether a given partner may have a part in the error: `text` has no line of the file, or two sides do not fit."""
    if isinstance(error, RankError):
        return "\n  at " not in text or "does not fit" in text
    return isinstance(error, (Deadlock, MismatchError, RunTimeout))


def _given(args: tuple, world: int) -> list[list[torch.Tensor]]:
    """The tensors that each rank is given."""
    of_rank = [[a.values[rank] if isinstance(a, per_rank) else a for a in args] for rank in range(world)]
    return [[value for value in values if isinstance(value, torch.Tensor)] for values in of_rank]


def _each(args: tuple) -> str | None:
    values = [a.values[0] if isinstance(a, per_rank) else a for a in args]
    return elements_each(next((value for value in values if isinstance(value, torch.Tensor)), None))
