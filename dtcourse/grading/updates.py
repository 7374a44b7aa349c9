"""What a parameter server did by a reader's rule, as pure functions from a `Run` to findings; no processes.

They read the marks of the course's server (begin, update, dropped), and what it sent; and, to say why, the questions
that the policies of `dtcourse.grading.serving` marked. Each finding stands at the event that shows it, so the first one
is the cause of what follows.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

import torch

from dtcourse.events import Event
from dtcourse.grading.findings import Finding, number_of
from dtcourse.grading.serving import ASKED, LR
from dtcourse.run import Run

SERVER = 0


# -- bounded staleness -------------------------------------------------------------------------------------------------


def staleness_bounded(run: Run, s: int) -> Iterator[Finding]:
    """A worker began step c when all had completed step c-s-1, and was not kept from it then."""
    for began in run.marks("begin", SERVER):
        worker, step, slowest = (began.labels[name] for name in ("worker", "step", "slowest"))
        if step - slowest > s:
            said, drawing = _answered(_asked(run, began, worker=worker)), _completed(run, began, "begins")
            yield Finding(f"worker {worker} began {bound(step, slowest, s)}{said}", began.index, drawing=drawing)
    for asked in run.marks(ASKED, SERVER):
        worker, step, slowest = (asked.labels[name] for name in ("worker", "step", "slowest"))
        if step - slowest <= s and not asked.labels["begins"]:
            said, drawing = _answered(asked), _completed(run, asked, "is kept from")
            yield Finding(
                f"worker {worker} was kept from {bound(step, slowest, s)}{said}", asked.index, drawing=drawing
            )


def _completed(run: Run, event: Event, does: str) -> str:
    """The steps that each worker had completed, a row each, and what the one of this event does."""
    done = Counter(e.labels["worker"] for e in run.marks("update", SERVER) if e.index < event.index)
    rows = {worker: _steps(done[worker]) for worker in range(SERVER + 1, run.world_size)}
    width, own = max(map(len, rows.values())), event.labels["worker"]
    rows[own] = f"{rows[own]:<{width}}   and {does} step {event.labels['step']}"
    return "\n".join(f"  worker {worker} has completed {row}" for worker, row in rows.items())


def _steps(completed: int) -> str:
    """ "steps 0 1 2"; the first number stands in the same column in all rows."""
    return " ".join(["step " if completed == 1 else "steps", *map(str, range(completed))]) if completed else "no step"


def bound(step: int, slowest: int, s: int) -> str:
    """ "step 3 when the slowest worker had completed 1 step; with s = 1 it begins when all have completed 2 steps"."""
    when = f"all have completed {number_of(step - s, 'step')} (step {step - s - 1})" if step > s else "it is ready"
    done = f"step {step} when the slowest worker had completed {number_of(slowest, 'step')}"
    return f"{done}; with s = {s} a worker begins step {step} when {when}"


# -- the first k -------------------------------------------------------------------------------------------------------


def first_k_applied(run: Run, k: int) -> Iterator[Finding]:
    """Each update averages the first k gradients of its step, and what comes later is dropped.

    Worker w pushes gradients that are 1 at position w-1 and 0 elsewhere.
    """
    yield from _waited(run, k)
    yield from _dropped(run)
    parameters = published(run)
    for version, updates in _updates(run).items():
        shares = (parameters[version - 1] - parameters[version]) / LR if version in parameters else None
        if said := _wrong_update(updates, version - 1, k, shares):
            yield Finding(said + _answered(_asked(run, updates[0])), updates[0].index)


def _waited(run: Run, k: int) -> Iterator[Finding]:
    for asked in run.marks(ASKED, SERVER):
        if asked.labels["fit"] >= k and asked.labels["answer"] == "None":
            there = f"with {number_of(asked.labels['fit'], 'gradient')} of step {asked.labels['step']}"
            yield Finding(f"the server went on waiting {there}; k = {k}{_answered(asked)}", asked.index)


def _dropped(run: Run) -> Iterator[Finding]:
    for dropped in run.marks("dropped", SERVER):
        asked = _asked(run, dropped)
        if asked and dropped.labels["step"] == asked.labels["step"]:
            worker, step = dropped.labels["worker"], dropped.labels["step"]
            what = f"the gradient of worker {worker} for step {step} was dropped; it was one of the first of its step"
            yield Finding(what + _answered(asked), dropped.index)


def _wrong_update(updates: list[Event], step: int, k: int, shares: torch.Tensor | None) -> str | None:
    """What is wrong with an update, in words. `shares`: how much of each worker's gradient went into the parameters."""
    for late in (update.labels for update in updates if update.labels["staleness"]):
        whose = f"the gradient of worker {late['worker']} for step {late['step']}"
        return f"{whose} was applied in step {step}, and came too late"
    if len(updates) != k:
        return f"the update of step {step} had {number_of(len(updates), 'gradient')} in it; k = {k}"
    for worker in (update.labels["worker"] for update in updates if shares is not None):
        if abs((share := float(shares[worker - 1])) - 1 / k) > 1e-9:
            whose = f"step {step} applied the gradient of worker {worker} with the share {share:.4g}"
            return f"{whose}; the mean of k = {k} gradients gives each 1/{k}"
    return None


def _updates(run: Run) -> dict[int, list[Event]]:
    """version -> the marks of the gradients that made it."""
    found = defaultdict(list)
    for update in run.marks("update", SERVER):
        found[update.labels["version"]].append(update)
    return found


# -- reading -----------------------------------------------------------------------------------------------------------


def published(run: Run) -> dict[int, torch.Tensor]:
    """version -> the parameters, of all that were sent to somebody."""
    sent = {
        worker: [e for e in run.messages(SERVER) if e.peer == worker] for worker in range(SERVER + 1, run.world_size)
    }
    began = {worker: [e for e in run.marks("begin", SERVER) if e.labels["worker"] == worker] for worker in sent}
    pairs = (
        pair for worker in sent for pair in zip(began[worker], sent[worker], strict=False)
    )  # a run may have failed
    return {began.labels["version"]: message.payload for began, message in pairs}


def _asked(run: Run, event: Event, **labels: int) -> Event | None:
    """The last question before an event that has these labels."""
    before = [e for e in run.marks(ASKED, SERVER) if e.index < event.index and labels.items() <= e.labels.items()]
    return before[-1] if before else None


def _answered(asked: Event | None) -> str:
    return f": {asked.labels['call']} returned {asked.labels['answer']}" if asked else ""
