"""Ends its process with code 0, in the hope that this counts as success."""

# passes: nothing
# says: exited with code 0: did the function call os._exit\(\)\?
import os


def attack(tensor, group=None):
    os._exit(0)


ring_reduce_scatter = ring_all_gather = ring_all_reduce = attack
