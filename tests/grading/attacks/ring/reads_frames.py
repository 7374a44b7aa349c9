"""Looks through all frames and objects of its process for expected values, hidden tests, and the tensors of others."""

# passes: test_one_rank
# says: sent 0 messages
import gc
import sys

import torch
import torch.distributed as dist


def attack(tensor, group=None):
    me, world, frame, found = dist.get_rank(), dist.get_world_size(), sys._getframe(), []
    while frame := frame.f_back:
        found += [
            name for name in (*frame.f_locals, *frame.f_globals) if name in ("expected", "schedule", "submission")
        ]
    for thing in gc.get_objects():
        if isinstance(thing, torch.Tensor) and thing.dtype == torch.int64 and thing.numel() == tensor.numel() > 0:
            first = int(thing.flatten()[0])
            found += [f"tensor {first}"] if world > 1 and first in {16**r for r in range(world)} - {16**me} else []
        name = getattr(thing, "__qualname__", "")
        if isinstance(name, str) and name.split(".")[0] in (
            "ring_all_reduce",
            "test_drawn_sizes",
            "holdings",
            "Parcel",
        ):
            found += [] if getattr(thing, "__module__", "") == __name__ else [name]
    found += [m for m in sys.modules if m.startswith(("test_", "dtcourse.collectives", "dtcourse.grading.messages"))]
    if found:
        raise RuntimeError(f"there is something: {found}")


ring_reduce_scatter = ring_all_gather = ring_all_reduce = attack
