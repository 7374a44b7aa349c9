"""What a rank does, as data: `Event`, and the two words a reader adds of his own, `region` and `mark`.

Lives at the bottom of the house: an algorithm may import this file and `torch`, nothing else of ours.
Outside a recorded run (under `torchrun`, in a test, in a job) `region` and `mark` do nothing and cost nothing.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

SEND, RECV, COLLECTIVE, REGION, MARK, RETURN = "send", "recv", "collective", "region", "mark", "return"
CONTROL = "control"  # the region whose messages are control traffic
WAIT = "wait"  # the region in which a thread waits for others: no work, and so no longer on a slow rank
HELD = "held"  # a rank of a stepped run stands still before `step`; `arguments` say how its tensors stand meanwhile
ANY_RANK = -2
NEW_GROUP = "new_group"  # the making of a process group: "new_group([0, 2])"


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the reader's own source: the innermost frame outside torch and the recorder."""

    file: str
    number: int
    function: str


@dataclass(frozen=True, slots=True)
class Event:
    """One thing one rank did. Times are nanoseconds of the machine's monotonic clock; None means "not yet".

    `sequence` counts the collectives of a group, or the messages of one channel (group, sender, receiver, tag).
    `peer` is a global rank: the other end of a message, the root of a rooted collective, None for the others,
    and `ANY_RANK` for a receive from any rank that nothing has reached yet.
    `step` numbers messages: a send is 1 + the highest step among the receives this rank had completed; a receive
    has the step of its send.
    `payload` and `arguments` are there only in a watched run: the bytes sent or received (or the input of a
    collective), and the tensor arguments of the run's function as they stood when the event was posted.
    """

    rank: int
    index: int
    kind: str  # one of the constants above
    op: str  # "send", "all_reduce", ...; the name of a region or mark
    group: tuple[int, ...] = ()  # global ranks
    sequence: int = 0
    peer: int | None = None
    tag: int = 0
    bytes: int = 0
    dtype: str = ""
    shape: tuple[int, ...] | str = ()
    posted: int = 0
    started: int | None = None  # when the last rank that takes part had posted its side
    ended: int | None = None
    wait_from: int | None = None
    wait_to: int | None = None
    step: int = 0
    line: Line | None = None
    labels: dict[str, Any] = field(default_factory=dict)  # of the enclosing regions; of a mark: its values
    control: bool = False  # a barrier, an object collective, or in region("control"): counted in no byte rule
    payload: torch.Tensor | None = None
    arguments: tuple[torch.Tensor, ...] = ()

    @property
    def pending(self) -> bool:
        """Posted, and not completed when the record ended."""
        return self.ended is None


def channel(event: Event) -> tuple:
    """What the two ends of a message have in common."""
    sender, receiver = (event.rank, event.peer) if event.kind == SEND else (event.peer, event.rank)
    return event.group, sender, receiver, event.tag, event.sequence


class Sink(Protocol):
    """Where regions and marks go: the recorder of the rank."""

    def region(self, name: str, labels: dict[str, Any]) -> AbstractContextManager[None]: ...

    def mark(self, name: str, values: dict[str, Any]) -> None: ...


_sink: Sink | None = None
_NOTHING: AbstractContextManager[None] = nullcontext()


def record_into(sink: Sink | None) -> None:
    """Send regions and marks of this process to `sink` (None: nowhere)."""
    global _sink
    _sink = sink


def region(name: str, **labels: Any) -> AbstractContextManager[None]:
    """A stretch of work for the timeline: `with region("forward", microbatch=2): ...`

    What is sent and received in `region("control")` is counted in no byte rule: headers, votes, and the like.
    """
    return _NOTHING if _sink is None else _sink.region(name, labels)


def mark(name: str, **values: Any) -> None:
    """A point with values: `mark("loss", value=loss, step=3)`. They are numbers, tensors of one element, or strings."""
    if _sink is not None:
        _sink.mark(name, values)
