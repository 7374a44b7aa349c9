"""Ranks add up through files, shared memory and sockets, and not through messages."""

# passes: test_one_rank
# says: sent 0 messages
import glob
import os
import socket
from multiprocessing import shared_memory

import torch.distributed as dist


def attack(tensor, group=None):
    me, world = dist.get_rank(), dist.get_world_size()
    for where in ("/tmp", "/dev/shm", "/submission", "/var/tmp"):
        try:
            with open(f"{where}/rank{me}", "w") as file:
                file.write(repr(tensor.tolist()))
            there = glob.glob(f"{where}/rank*")
        except OSError:
            continue
        if len(there) == world > 1:
            os._exit(1)  # that would be a way
    memory = lambda: shared_memory.SharedMemory("ring", True, 64)  # noqa: E731
    for way in (memory, lambda: socket.socket(socket.AF_UNIX).bind("\0ring")):
        try:
            way()
        except OSError:
            continue
        os._exit(1)


ring_reduce_scatter = ring_all_gather = ring_all_reduce = attack
