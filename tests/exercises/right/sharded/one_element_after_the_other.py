"""Goes through the elements to find its own, and keeps lists of what it has."""

import itertools

import torch
import torch.distributed as dist


def own_part(length, rank, world):
    sizes = [length // world + (chunk < length % world) for chunk in range(world)]
    ends = list(itertools.accumulate(sizes))
    chunk = rank + 1 if rank < world - 1 else 0
    return slice(ends[chunk] - sizes[chunk], ends[chunk])


def average_own(gradient, share, reduce_scatter, group=None):
    torch.mul(gradient, share, out=gradient)
    reduce_scatter(gradient, group)
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    own = torch.empty(len(range(len(gradient))[own_part(len(gradient), rank, world)]), dtype=gradient.dtype)
    own.copy_(gradient[own_part(len(gradient), rank, world)])
    return own


def zero_1_step(parameters, gradient, share, update, reduce_scatter, all_gather, group=None):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    own = own_part(len(parameters), rank, world)
    average = average_own(gradient, share, reduce_scatter, group)
    update(parameters.narrow(0, own.start, own.stop - own.start), average)
    all_gather(parameters, group)


def zero_2_gradients(layers, backward, share, reduce_scatter, group=None):
    if layers == 0:
        return []
    last = average_own(backward(layers - 1), share, reduce_scatter, group)
    return [*zero_2_gradients(layers - 1, backward, share, reduce_scatter, group), last]


def gather(own, length, all_gather, group=None):
    start = own_part(length, dist.get_rank(group), dist.get_world_size(group)).start
    whole = torch.full((length,), float("nan"), dtype=own.dtype)
    for i, value in enumerate(own):
        whole[start + i] = value
    all_gather(whole, group)
    return whole


def zero_3_gradients(parts, lengths, forward, backward, share, reduce_scatter, all_gather, group=None):
    own = {}

    def through(i):
        if i == len(parts):
            return
        forward(i, gather(parts[i], lengths[i], all_gather, group))
        through(i + 1)
        gradient = backward(i, gather(parts[i], lengths[i], all_gather, group))
        own[i] = average_own(gradient, share, reduce_scatter, group)

    through(0)
    return [own[i] for i in range(len(parts))]


def memory(stage, length, rank, world, parameter, gradient, state):
    own = own_part(length, rank, world)
    held = {0: "", 1: "s", 2: "gs", 3: "pgs"}[stage]
    sizes = {"p": parameter, "g": gradient, "s": state}
    return sum(sizes[name] * ((own.stop - own.start) if name in held else length) for name in "pgs")
