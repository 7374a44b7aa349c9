"""A ring all-reduce played out in one process as a hand-made `Run`, so that views can be tested without ranks.

Faults can be put in by the numbers that the reader's own code may get wrong: `gather` is the chunk offset of the
second phase (1 is right, -1 is the published mistake), `steps` of each phase, and `lost_after` stops the run.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from dtcourse.events import RECV, REGION, RETURN, SEND, Event, Line
from dtcourse.origins import provenance
from dtcourse.run import Run

SOURCE = """import torch
import torch.distributed as dist


def ring_all_reduce(x):
    rank, world = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % world, (rank - 1) % world
    chunks = list(x.tensor_split(world))

    for step in range(world - 1):  # reduce-scatter: each rank ends owning one chunk of the sum
        incoming = torch.empty_like(chunks[(rank - step - 1) % world])
        exchange(chunks[(rank - step) % world], right, incoming, left)
        chunks[(rank - step - 1) % world] += incoming

    for step in range(world - 1):  # all-gather: pass the finished chunks around
        incoming = torch.empty_like(chunks[(rank - step) % world])
        exchange(chunks[(rank - step + 1) % world], right, incoming, left)
        chunks[(rank - step) % world].copy_(incoming)
"""
LINES = {"reduce": 12, "gather": 17}
STEP_NS, SEND_NS = 1_000_000, 250_000


@dataclass
class Ring:
    world: int
    length: int
    gather: int = 1
    floats: bool = False
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tensors = [
            torch.randn(self.length) if self.floats else provenance(self.world, rank, self.length)
            for rank in range(self.world)
        ]

    def add(self, rank: int, kind: str, **values) -> None:
        index = sum(e.rank == rank for e in self.events)
        op = values.pop("op", kind)
        self.events.append(Event(rank, index, kind, op, tuple(range(self.world)), **values))

    def step(self, step: int, phase: str, sent: int, lost: bool = False) -> None:
        """All ranks send chunk `rank + sent` to the right and put what comes from the left in its place."""
        before = [tensor.clone() for tensor in self.tensors]
        for rank in range(self.world):
            left, right = (rank - 1) % self.world, (rank + 1) % self.world
            out, home = (rank + sent) % self.world, (rank + sent - 1) % self.world
            leaving = before[rank].tensor_split(self.world)[out].clone()
            coming = before[left].tensor_split(self.world)[(left + sent) % self.world].clone()
            at = step * STEP_NS + rank * 40_000
            ended = None if lost else at + SEND_NS
            common = {"sequence": step, "posted": at, "line": Line("ring.py", LINES[phase], "ring_all_reduce")}
            common |= {"arguments": (before[rank],), "labels": {"phase": phase}}
            sizes = [{"bytes": t.numel() * t.element_size(), "shape": tuple(t.shape)} for t in (leaving, coming)]
            self.add(rank, SEND, peer=right, step=step, payload=leaving, ended=ended, **sizes[0], **common)
            waited = {"wait_from": at + 60_000, "wait_to": None if lost else at + SEND_NS + 50_000}
            self.add(
                rank,
                RECV,
                peer=left,
                step=0 if lost else step,
                payload=None if lost else coming,
                ended=None if lost else at + SEND_NS + 40_000,
                **sizes[1],
                **common,
                **waited,
            )
            if not lost:
                self.put(rank, home, coming, phase)

    def put(self, rank: int, home: int, coming: torch.Tensor, phase: str) -> None:
        place = self.tensors[rank].tensor_split(self.world)[home]
        coming = coming[: len(place)]  # a wrong offset moves chunks of another length
        if phase == "reduce":
            place[: len(coming)] += coming
        else:
            place[: len(coming)] = coming


def ring_run(
    world: int = 4, length: int = 10, gather: int = 1, floats: bool = False, lost_after: int | None = None
) -> Run:
    """The run of `ring_all_reduce`; with `lost_after`, step `lost_after + 1` is posted and never completes."""
    ring = Ring(world, length, gather, floats)
    plan = [("reduce", -i) for i in range(world - 1)] + [("gather", gather - i) for i in range(world - 1)]
    for step, (phase, sent) in enumerate(plan, start=1):
        lost = lost_after is not None and step > lost_after
        ring.step(step, phase, sent, lost)
        if lost:
            break
    _regions(ring, world - 1)
    if lost_after is None:
        for rank in range(world):
            end = len(plan) * STEP_NS + STEP_NS
            ring.add(rank, RETURN, posted=end, ended=end, arguments=(ring.tensors[rank].clone(),))
    return Run(
        world,
        function="ring_all_reduce",
        results=[None] * world,
        events=sorted(ring.events, key=lambda e: (e.posted, e.rank, e.index)),
        sources={"ring.py": SOURCE},
        seconds=(len(plan) + 1) * STEP_NS / 1e9,
        backend="simulated",
        failure=None if lost_after is None else "Deadlock: every rank waits for the rank on its left",
    )


def _regions(ring: Ring, steps: int) -> None:
    for name, first in (("reduce-scatter", 1), ("all-gather", 1 + steps)):
        for rank in range(ring.world):
            at = first * STEP_NS + rank * 40_000 - 20_000
            ring.add(rank, REGION, op=name, posted=at, started=at, ended=at + steps * STEP_NS - 200_000)
