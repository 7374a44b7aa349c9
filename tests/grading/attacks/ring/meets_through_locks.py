"""Ranks meet by locks and leases on files that all can read, and by the flags of a shared descriptor."""

# passes: test_one_rank
# says: sent 0 messages
import contextlib
import fcntl
import os
import struct
import time

import torch.distributed as dist

READ, WRITE = (struct.pack("hhqqi", kind, os.SEEK_SET, 1234, 1, 0) for kind in (fcntl.F_RDLCK, fcntl.F_WRLCK))


def attack(tensor, group=None):
    world, file = dist.get_world_size(), os.open(os.__file__, os.O_RDONLY)
    before = fcntl.fcntl(0, fcntl.F_GETFL)
    with contextlib.suppress(OSError):
        fcntl.fcntl(0, fcntl.F_SETFL, before ^ (os.O_APPEND if dist.get_rank() == 0 else 0))
    with contextlib.suppress(OSError):
        fcntl.fcntl(file, fcntl.F_SETLK, READ)
    time.sleep(0.1)
    seen = [dist.get_rank() and fcntl.fcntl(0, fcntl.F_GETFL) != before]
    for way in (
        lambda: world > 1 and struct.unpack("hhqqi", fcntl.fcntl(file, fcntl.F_GETLK, WRITE))[0] != fcntl.F_UNLCK,
        lambda: fcntl.flock(file, fcntl.LOCK_SH) is None,
        lambda: fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK) is not None,
        lambda: fcntl.fcntl(os.open(os.path.dirname(os.__file__), os.O_RDONLY), fcntl.F_NOTIFY, 0) is not None,
    ):
        with contextlib.suppress(OSError):
            seen.append(way())
    if any(seen):
        os._exit(1)  # that would be a way


ring_reduce_scatter = ring_all_gather = ring_all_reduce = attack
