"""Which weights a micro-batch meets, counted in updates of its stage.

In a synchronous schedule every forward and backward of a batch meets version 0: the one update comes at the end. In an
asynchronous one a stage updates after each backward, so between the forward of a micro-batch and its backward others
have changed the weights. How many is the staleness of its gradient.
"""

from __future__ import annotations

from typing import NamedTuple

from .actions import Kind, Schedule


class Versions(NamedTuple):
    """How many updates its stage had made when a micro-batch came through, forward and backward."""

    forward: int
    backward: int

    @property
    def staleness(self) -> int:
        """The updates between the forward and the backward."""
        return self.backward - self.forward


def weight_versions(schedule: Schedule) -> tuple[tuple[Versions, ...], ...]:
    """The versions that each micro-batch meets: [stage][micro-batch]. The schedule must be right (`check`).

    `pipedream(3, 4)`, forward and backward of each micro-batch:

    stage 0  0 0  0 1  0 2  1 3
    stage 1  0 0  0 1  1 2  2 3
    stage 2  0 0  1 1  2 2  3 3
    """
    versions = [[Versions(0, 0)] * schedule.microbatches for _ in range(schedule.stages)]
    for actions in schedule.ranks if schedule.asynchronous else ():
        updates = dict.fromkeys(range(schedule.stages), 0)
        for kind, microbatch, stage in actions:
            if kind == Kind.FORWARD:
                versions[stage][microbatch] = Versions(updates[stage], 0)
            elif kind == Kind.BACKWARD:
                versions[stage][microbatch] = versions[stage][microbatch]._replace(backward=updates[stage])
                updates[stage] += 1
    return tuple(map(tuple, versions))


def versions_kept(schedule: Schedule) -> tuple[int, ...]:
    """How many versions of its weights each stage must keep at once, so that a backward finds those of its forward.

    The version that the stage is at counts; one that no micro-batch in flight has seen can go. PipeDream: P-s for
    stage s, given enough micro-batches.
    """
    versions = weight_versions(schedule)
    most = [1] * schedule.stages
    for actions in schedule.ranks:
        in_flight: dict[int, set[int]] = {}
        for kind, microbatch, stage in actions:
            flying = in_flight.setdefault(stage, set())
            seen = {versions[stage][one].forward for one in flying}
            if kind == Kind.FORWARD:
                flying.add(microbatch)
                seen.add(versions[stage][microbatch].forward)
            elif kind == Kind.BACKWARD:
                seen.add(versions[stage][microbatch].backward)  # the one that the stage is at
                flying.discard(microbatch)
            most[stage] = max(most[stage], len(seen))
    return tuple(most)
