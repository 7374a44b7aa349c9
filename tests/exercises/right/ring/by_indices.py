"""Index arithmetic and narrow instead of chunks, modulo by hand, tags, and all in one function with a default."""

import math

import torch.distributed as dist


def border(k, length, world):
    return k * (length // world) + min(k, length % world)


def ring_all_reduce(tensor, group=None, add=True, gather=True):
    me, n = dist.get_rank(group), dist.get_world_size(group)
    flat, length = tensor.view(math.prod(tensor.shape)), tensor.numel()
    right, left = me + 1 - n * (me == n - 1), me - 1 + n * (me == 0)
    parts = [flat.narrow(0, border(k, length, n), border(k + 1, length, n) - border(k, length, n)) for k in range(n)]
    for step in range(n - 1 if not add else 0, 2 * n - 2 if gather else n - 1):
        out, own = parts[(me - step) % n], parts[(me - step - 1) % n]
        box = own.new_zeros(own.shape)
        sending = dist.isend(out.contiguous(), group=group, group_dst=right, tag=step)
        dist.recv(box, group=group, group_src=left, tag=step)
        sending.wait()
        own[...] = own + box if step < n - 1 else box


def ring_reduce_scatter(tensor, group=None):
    ring_all_reduce(tensor, group, gather=False)


def ring_all_gather(tensor, group=None):
    ring_all_reduce(tensor, group, add=False)
