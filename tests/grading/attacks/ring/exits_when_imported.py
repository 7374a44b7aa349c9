"""Leaves by SystemExit before anything of it has been asked."""

# passes: nothing
# says: cannot be imported: .*raised SystemExit
import sys

sys.exit(0)


def attack(tensor, group=None):
    pass


ring_reduce_scatter = ring_all_gather = ring_all_reduce = attack
