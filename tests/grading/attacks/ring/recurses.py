"""Recurses without end, also where Python does not count."""

# passes: nothing
# says: RecursionError|was ended by SIGSEGV|had not finished
import sys

sys.setrecursionlimit(10**9)


def attack(tensor, group=None):
    return attack(tensor, group)


ring_reduce_scatter = ring_all_gather = ring_all_reduce = attack
