"""Reads memory that is not there."""

# passes: nothing
# says: was ended by SIGSEGV
import ctypes


def attack(tensor, group=None):
    ctypes.string_at(0)


ring_reduce_scatter = ring_all_gather = ring_all_reduce = attack
