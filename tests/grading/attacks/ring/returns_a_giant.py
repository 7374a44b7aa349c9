"""Returns a gigabyte, a list as deep as lists can be, numbers that are none, and a range that nobody can write out."""

# passes: nothing
# says: returned|cannot be sent back|what came from it|MemoryError|allocate
import torch


def ring_reduce_scatter(tensor, group=None):
    return torch.zeros(1 << 28)


def ring_all_gather(tensor, group=None):
    deep = []
    for _ in range(900):
        deep = [deep]
    return deep


def ring_all_reduce(tensor, group=None):
    return range(10**12) if tensor.numel() % 2 else [float("nan"), float("inf"), 10**4000]
