"""Writes into the socket what is no frame: too long, no JSON, too deep, and half of one."""

# passes: nothing
# says: what came from it is not what a rank sends|had not finished
import gc
import struct

import torch.distributed as dist


def attack(tensor, group=None):
    grader = next(thing for thing in gc.get_objects() if type(thing).__name__ == "Grader")
    deep = b"[" * 10**6
    rubbish = [
        struct.pack("!II", 0xFFFFFFFF, 0xFFFFFFFF), struct.pack("!II", 3, 0) + b"}{\xff",
        struct.pack("!II", len(deep), 0) + deep, struct.pack("!II", 100, 100),
        struct.pack("!II", 2, 0) + b"{}", struct.pack("!II", 4, 0) + b"null",
    ]  # fmt: skip
    grader.send(rubbish[dist.get_rank() % len(rubbish)])
    while True:
        pass


ring_reduce_scatter = ring_all_gather = ring_all_reduce = attack
