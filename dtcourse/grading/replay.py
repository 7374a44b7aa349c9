"""What a parameter server must have sent, replayed from messages alone; pure functions from a `Run` to findings.

The marks of a server say in its own words what it did, and they are made in the rank in which the reader's rule runs.
Messages nobody can make up: whoever graded others' work passed them on. So the server is played again here, with the
right rule, from the gradients that reached it, and what it sent has to be the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from dtcourse.events import RECV, SEND, Event
from dtcourse.grading.corrections import TOLERANCE, Rule, Stale
from dtcourse.grading.findings import Finding, number_of
from dtcourse.grading.serving import LR
from dtcourse.grading.updates import SERVER
from dtcourse.run import Run


@dataclass
class Server:
    """What the right server knows: the parameters, and what each worker has pulled."""

    parameters: torch.Tensor
    version: int = 0
    pulled: dict[int, tuple[int, torch.Tensor]] = field(default_factory=dict)  # worker -> version, parameters
    pushes: Counter[int] = field(default_factory=Counter)  # of each worker
    gradients: list[torch.Tensor] = field(default_factory=list)  # all, in the order in which they came
    kept: list[torch.Tensor] = field(default_factory=list)  # of the step that is not over

    def update(self, gradient: torch.Tensor) -> None:
        self.parameters, self.version = self.parameters - LR * gradient, self.version + 1


Play = Callable[[Server, int, torch.Tensor], None]  # what the server does with a worker's gradient


def at_once(server: Server, worker: int, gradient: torch.Tensor) -> None:
    server.update(gradient)


def first(k: int) -> Play:
    """The mean of the first k gradients of a step; what comes late is dropped."""

    def play(server: Server, worker: int, gradient: torch.Tensor) -> None:
        if server.pulled[worker][0] == server.version:
            server.kept.append(gradient)
        if len(server.kept) == k:
            server.update(sum(server.kept) / k)
            server.kept.clear()

    return play


def corrected_by(rule: Rule) -> Play:
    """Each gradient at once, corrected."""

    def play(server: Server, worker: int, gradient: torch.Tensor) -> None:
        server.update(rule(Stale(tuple(server.gradients), server.parameters, server.pulled[worker][1])))

    return play


def replayed(
    run: Run,
    turns: Sequence[int],
    gradient: Callable[[int, torch.Tensor], torch.Tensor],
    play: Play,
    ahead: int | None = None,
) -> Iterator[Finding]:
    """Workers push in `turns`, gradient(worker, what it pulled), and get what `play` makes of it.

    `ahead`: nobody gets parameters for more steps than the slowest has completed and so many.
    """
    events = sorted(_of_server(run), key=_when)
    if not events or events[0].kind != SEND:
        yield Finding(f"rank {SERVER} sent no parameters")
        return
    server, workers = Server(events[0].payload), set(turns)
    for e in events:
        said = _sent(server, e, workers, ahead) if e.kind == SEND else _received(server, e, gradient, play)
        if said:
            yield Finding(said, e.step, SERVER, e.line)
            return  # what follows, follows from this
    pushed = [e.peer for e in events if e.kind == RECV]
    if pushed != list(turns):
        yield Finding(f"gradients came from ranks {pushed}; their turns are {list(turns)}")


def _of_server(run: Run) -> list[Event]:
    received = [e for e in run.receives(SERVER) if not e.pending]
    return [e for e in [*run.messages(SERVER), *received] if e.bytes]


def _when(e: Event) -> int:
    return e.posted if e.kind == SEND else e.ended


def _sent(server: Server, e: Event, workers: set[int], ahead: int | None) -> str | None:
    """What is wrong with parameters that were sent, in words."""
    step, slowest = server.pushes[e.peer], min(server.pushes[worker] for worker in workers)
    if ahead is not None and step - slowest > ahead:
        late = f"the slowest has completed {number_of(slowest, 'step')}"
        return f"rank {SERVER} sent rank {e.peer} parameters for step {step} when {late}; s = {ahead}"
    if not _alike(e.payload, server.parameters):
        made = f"version {server.version}, which {number_of(len(server.gradients), 'gradient')} have made"
        return f"the parameters that rank {SERVER} sent rank {e.peer} are not {made}"
    server.pulled[e.peer] = server.version, server.parameters
    return None


def _received(server: Server, e: Event, gradient: Callable[..., torch.Tensor], play: Play) -> str | None:
    """What is wrong with a gradient that came, in words."""
    if e.peer not in server.pulled:
        return f"rank {e.peer} pushed a gradient before it had parameters"
    if not _alike(e.payload, gradient(e.peer, server.pulled[e.peer][1])):
        return f"what rank {e.peer} pushed is not its gradient at what it had pulled"
    server.gradients.append(e.payload)
    play(server, e.peer, e.payload)
    server.pushes[e.peer] += 1
    return None


def _alike(seen: torch.Tensor, wanted: torch.Tensor) -> bool:
    tolerance = TOLERANCE[wanted.dtype]
    return (seen.dtype, seen.shape) == (wanted.dtype, wanted.shape) and torch.allclose(
        seen, wanted, rtol=tolerance, atol=tolerance
    )
