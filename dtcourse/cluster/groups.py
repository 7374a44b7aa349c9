"""The process groups of a rank, from run to run."""

from __future__ import annotations

import contextlib

import torch.distributed as dist

_GROUPS_A_RUN = 1 << 20  # more than any run makes; groups that a %%ranks cell has made keep their numbers


class Groups:
    """Process groups made in a run end before the next: a thousand runs must not pile up a thousand groups.

    Not at its end: another rank may still be about to join. And what the groups of one run have put into the store
    is not for those of the next, which may have the same names; nor how many groups a rank was asked to make.
    """

    def __init__(self, store: dist.Store) -> None:
        self._store, self._runs = store, 0
        self._world = dist.group.WORLD
        self._lasting = {dist.group.WORLD}
        self._stale: list[dist.ProcessGroup] = []

    def whole(self) -> bool:
        """Whether the group of all ranks is still there."""
        return dist.group.WORLD is self._world

    def note(self, keep: bool) -> None:
        made = [g for g in dist.distributed_c10d._world.pg_map if g not in self._lasting]
        if keep:
            self._lasting.update(made)
        else:
            self._stale = made

    def forget(self) -> None:
        for group in self._stale:
            with contextlib.suppress(Exception):  # the reader may have destroyed it himself
                dist.destroy_process_group(group)
        self._stale = []
        if self.whole():
            self._runs += 1
            dist.distributed_c10d._world.group_count = _GROUPS_A_RUN * self._runs
            groups = dist.distributed_c10d._world.pg_map
            groups[self._world] = groups[self._world][0], dist.PrefixStore(f"run {self._runs}", self._store)
