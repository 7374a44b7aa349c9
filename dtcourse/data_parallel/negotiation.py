"""Which tensors are ready on all ranks: agreed on in rounds, because each rank may get them ready in another order.

In a round every rank shows what it has, and all see the same table, from which each draws the same conclusion:

                    weight    bias      embedding
    rank 0          GRADIENT  NOT_YET   NOTHING
    rank 1          GRADIENT  GRADIENT  GRADIENT
                    ready     -         ready: rank 0 adds zeros

A rank takes part in a round when it has something new to show, or nothing more to do. So a round waits for the last
rank's news, and never for ever, as long as each rank comes to the end of its backward.

Cost: a byte for each tensor from each rank to each rank, in `region("control")`. Horovod's ranks send their lists to
rank 0, which answers; once it has seen all tensors, it combines bits as here.

Source: Horovod (horovod/common/controller.cc).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import torch
import torch.distributed as dist

from dtcourse.events import region

SHOWN = 3  # so many names in a message


class State(IntEnum):
    """Of a tensor on a rank, in this step."""

    NOT_YET = 0
    NOTHING = 1  # there will be no gradient here
    GRADIENT = 2


class Negotiation:
    """Of the tensors called `names`, which are on `device`; among the ranks of `group`."""

    def __init__(self, names: Sequence[str], device: torch.device, group: dist.ProcessGroup) -> None:
        self._names, self._device, self._group = names, device, group
        self._table = torch.zeros(dist.get_world_size(group), len(names), dtype=torch.uint8, device=device)

    def begin(self) -> None:
        """A step: nothing is ready."""
        self._table.zero_()

    def round(self, here: Sequence[State]) -> tuple[set[int], set[int]]:
        """Show what is ready `here`. Returns what is ready everywhere, and what of it has a gradient somewhere.

        A rank that does not come leads to a `Deadlock`, or, where nobody watches, to an error after the group's
        time limit; both name the tensors that this rank waits for.
        """
        agreed = indices(self._table.all(0))
        waiting = shortened([self._names[i] for i, state in enumerate(here) if state and i not in agreed])
        row = torch.tensor(here, dtype=torch.uint8, device=self._device)
        try:
            with region("control", waiting=waiting):
                dist.all_gather(list(self._table), row, group=self._group)
        except RuntimeError as problem:
            problem.add_note(f"rank {dist.get_rank()} was waiting for other ranks to have {waiting} ready")
            raise
        ready, used = self._table.all(0), self._table.amax(0) == State.GRADIENT
        return indices(ready), indices(ready & used)


def indices(mask: torch.Tensor) -> set[int]:
    return set(mask.nonzero().flatten().tolist())


def shortened(names: Sequence[str]) -> str:
    """ "0.weight, 0.bias, 2.weight and 5 more"."""
    more = f" and {len(names) - SHOWN} more" * (len(names) > SHOWN)
    return ", ".join(names[:SHOWN]) + more
