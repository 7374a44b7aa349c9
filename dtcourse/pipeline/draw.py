"""A schedule as text: a row for each rank, a column for each unit of time."""

from __future__ import annotations

from .actions import Action, Schedule
from .simulate import Costs, simulate


def chart(schedule: Schedule, costs: Costs | None = None) -> str:
    """The schedule with whole-number costs (1 for F, I and W each, unless given), as in the tables of `schedules`.

    F2 is the forward of micro-batch 2, dashes go on with what began, .. is idle. Where a rank has several stages, a
    letter tells them apart: F2a is on its first stage, F2b on its second.
    """
    labels = {action: label(schedule, action) for actions in schedule.ranks for action in actions}
    width = max(map(len, labels.values()), default=0) + 1
    rows = []
    for rank, spans in enumerate(simulate(schedule, costs).ranks):
        row, now = f"rank {rank}  ", 0
        for action, start, end in spans:
            row += int(start - now) * ("." * (width - 1) + " ")
            row += labels[action].ljust(int(end - start) * width - 1, "-") + " "
            now = end
        rows.append(row.rstrip())
    return "\n".join(rows)


def label(schedule: Schedule, action: Action) -> str:
    """F2, or F2b where a rank has several stages."""
    chunk = action.stage // len(schedule.ranks)
    letter = chr(ord("a") + chunk) if schedule.stages > len(schedule.ranks) else ""
    return f"{action.kind}{action.microbatch}{letter}"
