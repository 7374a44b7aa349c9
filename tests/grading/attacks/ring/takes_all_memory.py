"""Takes memory until there is none."""

# passes: nothing
# says: MemoryError|can't allocate memory|was ended by SIG|had not finished
import torch


def attack(tensor, group=None):
    kept = []
    while True:
        kept.append(torch.ones(1 << 26))


ring_reduce_scatter = ring_all_gather = ring_all_reduce = attack
