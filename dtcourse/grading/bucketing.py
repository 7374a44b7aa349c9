"""What a run has to show of buckets: which parameters are where, and which all-reduces start when, in which order.

Pure functions from a result or a `Run` to findings; no processes. A bucket is known by its bytes: in what is run here,
no two buckets have the same number of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dtcourse.events import COLLECTIVE, NEW_GROUP, SEND, Event
from dtcourse.grading.findings import Finding, number_of
from dtcourse.run import Run

MIB = 2**20
_NEVER = float("inf")


# -- which parameters are in which bucket -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """Parameters in MiB, with dtypes, and limits in MiB; `why`: what is special about it."""

    sizes: Sequence[float]
    dtypes: str  # a letter for each
    bucket: float
    first: float
    why: str = ""

    def __str__(self) -> str:
        of = f" of dtypes {' '.join(self.dtypes)}" if len(set(self.dtypes)) > 1 else ""
        sizes = " ".join(f"{size:g}" for size in self.sizes)
        return f"parameters of {sizes} MiB{of}, buckets of {self.bucket:g} MiB, the first of {self.first:g}"


def right_buckets(case: Case) -> tuple[list[list[int]], list[list[int]]]:
    """Those that are closed, in order, and those that are open at the end."""
    closed: list[list[int]] = []
    opened: dict[str, list[int]] = {}
    for number in reversed(range(len(case.sizes))):
        dtype = case.dtypes[number]
        opened.setdefault(dtype, []).append(number)
        first = all(case.dtypes[bucket[0]] != dtype for bucket in closed)
        if sum(case.sizes[n] for n in opened[dtype]) >= (case.first if first else case.bucket):
            closed.append(opened.pop(dtype))
    return closed, list(opened.values())


def assignment(seen: object, case: Case) -> str | None:
    """What is wrong with an assignment, in words."""
    try:
        buckets = [[int(number) for number in bucket] for bucket in seen]
    except (TypeError, ValueError):
        return f"returned {seen!r}: return a list of buckets, each a list of numbers of parameters"
    closed, opened = right_buckets(case)
    if buckets[: len(closed)] == closed and sorted(buckets[len(closed) :]) == sorted(opened):
        return None
    said = f"{case}: {_text(buckets)}; it has to be {_text(closed + opened)}"
    advice = _advice(buckets, case)
    return f"{said}. {advice}" if advice else said


def _text(buckets: list[list[int]]) -> str:
    return " ".join(f"[{' '.join(map(str, bucket))}]" for bucket in buckets) or "no bucket at all"


def _advice(buckets: list[list[int]], case: Case) -> str:
    every = [number for bucket in buckets for number in bucket]
    if missing := sorted(set(range(len(case.sizes))) - set(every)):
        return f"Parameter {missing[0]} is in no bucket: what is open at the end counts, too"
    if any(len({case.dtypes[n] for n in bucket}) > 1 for bucket in buckets):
        return "A bucket is one tensor, and a tensor has one dtype: each dtype has buckets of its own"
    if len(set(case.dtypes)) == 1 and every != sorted(every, reverse=True):
        return "The last parameter comes first: so come the gradients"
    if any(not bucket for bucket in buckets):
        return "A bucket without parameters is none"
    return case.why


# -- what travels when -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bucket:
    """`elements` of float64 in all; complete, with those before it, when the backward pass has gone through `layer`.

    `before`: the layer that it goes through before that one. None: not complete in this step; no layer before.
    """

    elements: int
    layer: int | None = None
    before: int | None = None


def travelled(run: Run, ranks: Sequence[int], buckets: Sequence[Sequence[Bucket]], steps: int = 1) -> Iterator[Finding]:
    """Each of the ranks starts one all-reduce for each of `buckets[rank]`, in order, as soon as may be; in each step.

    The run marks "after" each layer's backward, has the backward pass in region("backward", step=...), what comes then
    in region("wait for all", step=...).
    """
    for place, rank in enumerate(ranks):
        for e in run.events:
            if e.rank == rank and _communicates(e) and e.op != "all_reduce":
                what = "sent messages of its own" if e.kind == SEND else f"called {e.op}"
                yield Finding(f"rank {rank} {what}: all that a bucket needs is one all_reduce", 0, rank, e.line)
        for step in range(steps):
            begins, ends = (_begins(run, rank, one) for one in (step, step + 1))
            seen = [e for e in run.events if e.rank == rank and _communicates(e) and begins <= e.posted < ends]
            found = [*_order(seen, rank, buckets[place]), *_time(run, seen, rank, step, buckets[place])]
            if any(r.labels["step"] == step for r in run.regions("wait for all", rank)):
                found += _number(seen, rank, buckets[place])
            yield from (_in_step(one, step, steps) for one in found)


def _begins(run: Run, rank: int, step: int) -> float:
    """When the backward pass of a step begins: an all-reduce of another thread's is in no region of the main one's."""
    return next((r.posted for r in run.regions("backward", rank) if r.labels["step"] == step), _NEVER)


def _in_step(finding: Finding, step: int, steps: int) -> Finding:
    if steps == 1:
        return finding
    return Finding(f"in step {step + 1}, {finding.message}", 10 * step + finding.step, finding.rank, finding.line)


def _communicates(e: Event) -> bool:
    return e.kind == SEND or (e.kind == COLLECTIVE and not e.op.startswith(NEW_GROUP))


def _order(seen: list[Event], rank: int, buckets: Sequence[Bucket]) -> Iterator[Finding]:
    sizes = [8 * bucket.elements for bucket in buckets]
    for number, (e, size) in enumerate(zip(seen, sizes, strict=False)):
        if e.bytes == size:
            continue
        if e.bytes in sizes[number:]:
            what = f"rank {rank} started the all-reduce of bucket {sizes.index(e.bytes)} before that of bucket {number}"
            why = "the buckets before it first: on another rank their gradients may come earlier"
        elif e.bytes in sizes:
            what, why = f"rank {rank} started the all-reduce of bucket {sizes.index(e.bytes)} twice", "once is enough"
        else:
            what = f"rank {rank} gave {number_of(e.bytes // 8, 'number')} to the all-reduce of bucket {number}"
            why = f"it has {size // 8}: all its gradients in one tensor, and zeros for those that are None"
        yield Finding(f"{what}; {why}", 0, rank, e.line)
        return


def _number(seen: list[Event], rank: int, buckets: Sequence[Bucket]) -> Iterator[Finding]:
    if len(seen) != len(buckets):
        what = f"rank {rank} started {number_of(len(seen), 'all-reduce')} for {number_of(len(buckets), 'bucket')}"
        why = "what has not started when the backward pass is over starts then" if len(seen) < len(buckets) > 1 else ""
        yield Finding(f"{what}; {why}" if why else what, 1, rank, seen[-1].line if seen else None)


def _time(run: Run, seen: list[Event], rank: int, step: int, buckets: Sequence[Bucket]) -> Iterator[Finding]:
    backward = next((r for r in run.regions("backward", rank) if r.labels.get("step") == step), None)
    waiting = next((r for r in run.regions("wait for all", rank) if r.labels.get("step") == step), None)
    if backward is None or backward.ended is None:
        return
    after = {m.labels["layer"]: m.posted for m in run.marks("after", rank) if m.labels.get("step") == step}
    for number, (e, bucket) in enumerate(zip(seen, buckets, strict=False)):
        if e.bytes != 8 * bucket.elements:
            return
        name = f"the all-reduce of bucket {number}"
        main_thread = "step" in e.labels  # another one is in no region of the main thread's
        deadline = after.get(bucket.layer, _NEVER)
        if not main_thread:  # it waits for one bucket after the other
            deadline = backward.ended if number == 0 and bucket.layer in after else _NEVER
        if main_thread and e.wait_from and e.wait_from < backward.ended:
            what = f"rank {rank} waited for {name} during the backward pass, which stood still meanwhile"
            advice = "a hook starts, and only what is called after the pass waits"
            if not after:
                what = f"rank {rank} waited for its all-reduce in start(), which holds up whoever calls it"
                advice = "start it with async_op=True, and wait in finish()"
            yield Finding(f"{what}: {advice}", 2, rank, e.line)
        elif e.posted < after.get(bucket.before, 0):
            what = f"rank {rank} started {name} when not all of its gradients were there"
            advice = ". After each step, forget what was counted in it" if step else ""
            yield Finding(f"{what}: they are after layer {bucket.layer}, not before{advice}", 3, rank, e.line)
        elif e.posted > deadline:
            late = "only when the backward pass was over" if e.posted > backward.ended else "later"
            what = f"the gradients of bucket {number} were all there after layer {bucket.layer}"
            yield Finding(
                f"{what}, and rank {rank} started its all-reduce {late}: in a hook, start all that are full",
                3,
                rank,
                e.line,
            )
        elif waiting and waiting.ended and (e.ended is None or e.ended > waiting.ended):
            yield Finding(f"rank {rank} went on before {name} was over: wait() for its handle", 4, rank, e.line)
