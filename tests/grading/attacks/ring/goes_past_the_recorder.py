"""Makes groups of its own, beside the one that the grader knows, and sends through those."""

# passes: test_one_rank
# says: sent 0 messages
import contextlib
import os
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

SOON = timedelta(seconds=0.3)


def attack(tensor, group=None):
    me, world = dist.get_rank(), dist.get_world_size()
    if world == 1:
        return
    for store in (
        lambda: dist.FileStore("/tmp/store", world),
        lambda: dist.TCPStore("127.0.0.1", 29511, world, me == 0, SOON),
    ):
        with contextlib.suppress(RuntimeError, OSError, ValueError):
            inner = c10d.ProcessGroupGloo(store(), me, world, SOON)
            inner.allreduce([tensor]).wait(SOON)
            os._exit(1)  # that would be a way
    for name in ("_inner", "inner", "_group", "_get_backend"):
        inner = getattr(dist.group.WORLD, name, None)
        if inner is not None and name != "_get_backend":
            os._exit(1)


ring_reduce_scatter = ring_all_gather = ring_all_reduce = attack
