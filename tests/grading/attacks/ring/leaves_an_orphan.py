"""A grandchild in a session of its own goes on when all is over."""

# passes: nothing
# says: PermissionError|the sum|sends
import os
import time


def attack(tensor, group=None):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(1000)
        os._exit(0)


ring_reduce_scatter = ring_all_gather = ring_all_reduce = attack
