"""Cuts with tensor_split, weighs in new tensors, and writes back what it has updated."""

import torch
import torch.distributed as dist


def own_part(length, rank, world):
    starts = [0]
    for chunk in torch.empty(length).tensor_split(world):
        starts.append(starts[-1] + len(chunk))
    return slice(starts[(rank + 1) % world], starts[(rank + 1) % world + 1])


def own_chunk(whole, group):
    return whole.tensor_split(dist.get_world_size(group))[(dist.get_rank(group) + 1) % dist.get_world_size(group)]


def average_own(gradient, share, reduce_scatter, group=None):
    weighted = share * gradient
    reduce_scatter(weighted, group=group)
    return own_chunk(weighted, group) + 0


def zero_1_step(parameters, gradient, share, update, reduce_scatter, all_gather, group=None):
    weights = own_chunk(parameters, group).clone()
    update(weights, average_own(gradient, share, reduce_scatter, group))
    own_chunk(parameters, group).copy_(weights)
    all_gather(parameters, group=group)


def zero_2_gradients(layers, backward, share, reduce_scatter, group=None):
    own = []
    while len(own) < layers:
        own.insert(0, average_own(backward(layers - len(own) - 1), share, reduce_scatter, group))
    return own


def gather(own, length, all_gather, group=None):
    whole = torch.zeros(length, dtype=own.dtype)
    own_chunk(whole, group).copy_(own)
    all_gather(whole, group=group)
    return whole


def zero_3_gradients(parts, lengths, forward, backward, share, reduce_scatter, all_gather, group=None):
    for i, (part, length) in enumerate(zip(parts, lengths, strict=True)):
        whole = gather(part, length, all_gather, group)
        forward(i, whole)
        del whole
    own = []
    for i in range(len(parts) - 1, -1, -1):
        whole = gather(parts[i], lengths[i], all_gather, group)
        gradient = backward(i, whole)
        del whole
        own.append(average_own(gradient, share, reduce_scatter, group))
        del gradient
    own.reverse()
    return own


def memory(stage, length, rank, world, parameter, gradient, state):
    own = own_part(length, rank, world)
    total = 0
    for first_sharded, size in ((3, parameter), (2, gradient), (1, state)):
        total += size * (own.stop - own.start if stage >= first_sharded else length)
    return total
