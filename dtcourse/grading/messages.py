"""What messages a run has to show, as pure functions from a `Run` to findings; no exercise in particular, no processes.

Values are read from `provenance` tensors, so what a message carries is known however the code got it there: through
views, clones, or NumPy. The n-th message of a rank is held against the n-th that the schedule asks for, or, where the
order is free, against the one that has to go to the same rank. Messages without elements may be sent or left out.

Ranks and chunks are numbered within the group that communicates. `members` are its global ranks, if it is not the
whole world; findings name those. `name` is the algorithm in words: "the ring".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from dtcourse.events import COLLECTIVE, NEW_GROUP, SEND, Event, channel
from dtcourse.grading.findings import Finding, number_of
from dtcourse.grading.reading import (
    Chunks,
    chunk_name,
    chunk_text,
    counted,
    last_step,
    name_of,
    once,
    span_of,
    start_of,
    summed,
    summed_positions,
)
from dtcourse.origins import contributions
from dtcourse.raw import dtype_name
from dtcourse.run import Run


@dataclass(frozen=True, slots=True)
class Parcel:
    """What a rank has to send: chunks (None: the whole tensor), summed over the ranks `of`, to the rank `to`.

    If a rank's n-th message need not be in step n, after n-1 receives: the `step` in which it goes, and how many
    messages the rank has `received` by then. `parts`: how many chunks the tensor has, if not one for each rank. `why`:
    what the algorithm does there, in words.
    """

    to: int
    chunk: Chunks
    of: tuple[int, ...]
    step: int | None = None
    received: int | None = None
    parts: int | None = None
    why: str = ""


def own_messages(run: Run) -> Iterator[Finding]:
    """No collective of the library: the exercise is to write one."""
    for e in run.events:
        if e.kind == COLLECTIVE and e.op != "barrier" and not e.op.startswith(NEW_GROUP):
            what = f"rank {e.rank} called the library's {e.op}; write it with sends and receives of your own"
            yield Finding(what, e.step, e.rank, e.line)


def nothing_hidden(run: Run) -> Iterator[Finding]:
    """No message with elements in `region("control")`, where it would be counted in no byte rule."""
    for e in run.events:
        if e.kind == SEND and e.control and e.bytes:
            yield Finding(
                f"rank {e.rank} sent {e.bytes} bytes as control traffic: all are to be seen", e.step, e.rank, e.line
            )


def never_waited(run: Run) -> Iterator[Finding]:
    """A receive that is never waited for is wrong also where its numbers happened to be there in time."""
    steps = {channel(e): e.step for e in run.messages()}
    for e in run.receives():
        if e.pending and e.bytes and channel(e) in steps:
            step = steps[channel(e)]
            what = f"rank {e.rank} used what it receives in step {step} before waiting for it"
            yield Finding(f"{what}: call .wait() on what irecv returned", step, e.rank, e.line)


def messages(
    run: Run,
    schedule: Sequence[Sequence[Parcel]],
    name: str,
    members: Sequence[int] | None = None,
    in_order: bool = True,
) -> Iterator[Finding]:
    """Each rank sends what `schedule[rank]` says, in this order (or in any), and nothing else."""
    yield from own_messages(run)
    yield from never_waited(run)
    members = range(len(schedule)) if members is None else members
    for rank, parcels in zip(members, schedule, strict=True):
        yield from _of_rank(run, rank, parcels, members, name, in_order)
    for e in run.messages():
        if e.rank not in members:
            yield Finding(f"rank {e.rank} sent to rank {e.peer}, and is not in the group", e.step, e.rank, e.line)


def _of_rank(
    run: Run, rank: int, parcels: Sequence[Parcel], members: Sequence[int], name: str, in_order: bool
) -> Iterator[Finding]:
    start = start_of(run, rank)
    if start is None:
        return
    length, world = start.numel(), len(members)
    spans = [span_of(parcel.chunk, length, parcel.parts or world) for parcel in parcels]
    numbered = enumerate(zip(parcels, spans, strict=True), 1)
    planned = [(p.step or number, p) for number, (p, (begin, stop)) in numbered if begin < stop]
    seen = [e for e in run.messages(rank) if e.bytes]
    if not in_order:
        seen, planned = _by_receiver(seen, planned, members)
    for e, (step, parcel) in zip(seen, planned, strict=False):
        if said := _differs(e, parcel, step if in_order and parcel.step is None else e.step, start, members, name):
            first = step - 1 if parcel.received is None else parcel.received
            before = run.receives(rank)[:first] if in_order else _posted_before(run, e)
            begin, stop = span_of(parcel.chunk, length, parcel.parts or world)
            early = _too_early(e, before, stop - begin) if e.peer == members[parcel.to] else ""
            yield Finding(said + early, e.step, rank, e.line)
    sent = f"rank {rank} sent {number_of(len(seen), 'message')}; {name} sends {len(planned)}"
    if len(seen) < len(planned):
        step, parcel = planned[len(seen)]
        place = f"in step {step}" if in_order else f"to rank {members[parcel.to]}"
        what = chunk_name(parcel.chunk)
        what = f"{what} {place} {'are' if what.startswith('chunks') else 'is'} missing{_why(parcel)}"
        yield Finding(f"{sent}: {what}", step if in_order else last_step(run) + 1, rank)
    elif len(seen) > len(planned):
        e = seen[len(planned)]
        what = name_of(e.payload, length, world, next((p.parts for p in parcels if p.parts), world))[1]
        yield Finding(f"{sent}: {what} to rank {e.peer} is one too many", e.step, rank, e.line)


Planned = list[tuple[int, Parcel]]  # with the step of each


def _by_receiver(seen: list[Event], planned: Planned, members: Sequence[int]) -> tuple[list[Event], Planned]:
    """Both in another order: what went to a rank beside what has to go there, and at the end what has no partner."""
    pairs, others, left = [], [], list(planned)
    for e in seen:
        match = next((p for p in left if members[p[1].to] == e.peer), None)
        if match is None:
            others.append(e)
        else:
            left.remove(match)
            pairs.append((e, match))
    return [e for e, _ in pairs] + others, [p for _, p in pairs] + left


def _differs(e: Event, parcel: Parcel, step: int, start: torch.Tensor, members: Sequence[int], name: str) -> str | None:
    """What is wrong with a message, in words."""
    rank, to, world, length = e.rank, members[parcel.to], len(members), start.numel()
    parts = parcel.parts or world
    if e.peer != to:
        return f"rank {rank} sent to rank {e.peer} in step {step}; {name} sends to rank {to} there{_why(parcel)}"
    if e.dtype != dtype_name(start.dtype):
        how = f"rank {rank} sent {e.dtype} in step {step}; its tensor holds {dtype_name(start.dtype)}"
        return f"{how}: send the elements as they are"
    payload, span = e.payload.flatten(), span_of(parcel.chunk, length, parts)
    if torch.equal(payload, summed(span, parcel.of, world)):
        return None
    chunk, what = name_of(payload, length, world, parts)
    if len(parcel.of) > 1 and torch.equal(payload, summed(span, parcel.of, world) // len(parcel.of)):
        return f"rank {rank} sent the average in step {step}; {name} sends the sum there"
    if summed_positions(payload, world) != span:
        both = chunk is not None and parcel.chunk is not None
        wanted = chunk_name(parcel.chunk) if both else chunk_text(parcel.chunk, length, parts)
        return f"rank {rank} sent {what} in step {step}; {name} sends {wanted} there{_why(parcel)}"
    what, them = chunk_name(parcel.chunk), "them" if isinstance(parcel.chunk, range) else "it"
    seen = next(c for v in payload.tolist() if (c := contributions(v, world)) != once(parcel.of, world))
    return (
        f"rank {rank} sent {what} in step {step} with {counted(seen, members)}; "
        f"{name} sends {them} with {counted(once(parcel.of, world), members)} there{_why(parcel)}"
    )


def _why(parcel: Parcel) -> str:
    return f" ({parcel.why})" if parcel.why else ""


def _posted_before(run: Run, e: Event) -> list[Event]:
    """What the rank had started to receive when it sent this."""
    return [r for r in run.receives(e.rank) if r.posted < e.posted]


def _too_early(e: Event, before: Sequence[Event], size: int) -> str:
    """Words for a message of the right size that was sent while what is received `before` it was not there yet."""
    late = any(r.wait_from and r.wait_from > e.posted and r.ended and r.ended > e.posted for r in before)
    if not late or e.payload.numel() != size:
        return ""
    return f"; rank {e.rank} had not waited yet for what it receives before: call .wait() on what irecv returned first"


def sent_bytes(run: Run, expected: Sequence[int], formulas: Sequence[str], name: str) -> Iterator[Finding]:
    """Each rank sends exactly so many bytes in all. `formulas` say how they come about."""
    for rank, (count, formula) in enumerate(zip(expected, formulas, strict=True)):
        if (seen := run.bytes_sent(rank)) != count:
            what = f"rank {rank} sent {seen:,} bytes in all; {name} sends {formula} = {count:,}"
            yield Finding(what, last_step(run), rank)


def received_bytes(run: Run, expected: Sequence[int], formulas: Sequence[str], name: str) -> Iterator[Finding]:
    """Each rank receives exactly so many bytes in all. `formulas` say how they come about."""
    for rank, (count, formula) in enumerate(zip(expected, formulas, strict=True)):
        if (seen := run.bytes_received(rank)) != count:
            what = f"rank {rank} received {seen:,} bytes in all; {name} brings it {formula} = {count:,}"
            yield Finding(what, last_step(run), rank)


def partners(run: Run, allowed: Sequence[int], name: str) -> Iterator[Finding]:
    """Each rank sends to this one rank only."""
    yield from own_messages(run)
    for e in run.messages():
        if e.bytes and e.peer != allowed[e.rank]:
            what = f"rank {e.rank} sent to rank {e.peer}; in {name} it sends to rank {allowed[e.rank]} only"
            yield Finding(what, e.step, e.rank, e.line)
