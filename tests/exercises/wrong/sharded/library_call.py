"""Adds up with the library's all_reduce."""
# message: rank 0 called the library's all_reduce: all it needs is the reduce_scatter and all_gather it is given

import torch.distributed as dist


def own_part(length, rank, world):
    chunk = (rank + 1) % world
    least, more = divmod(length, world)
    start = chunk * least + min(chunk, more)
    return slice(start, start + least + (chunk < more))


def mine(length, group):
    return own_part(length, dist.get_rank(group), dist.get_world_size(group))


def average_own(gradient, share, reduce_scatter, group=None):
    gradient *= share
    dist.all_reduce(gradient, group=group)
    return gradient[mine(len(gradient), group)].clone()


def zero_1_step(parameters, gradient, share, update, reduce_scatter, all_gather, group=None):
    own = average_own(gradient, share, reduce_scatter, group)
    update(parameters[mine(len(parameters), group)], own)
    all_gather(parameters, group)


def zero_2_gradients(layers, backward, share, reduce_scatter, group=None):
    own = [None] * layers
    for i in reversed(range(layers)):
        own[i] = average_own(backward(i), share, reduce_scatter, group)
    return own


def gather(own, length, all_gather, group=None):
    whole = own.new_empty(length)
    whole[mine(length, group)] = own
    all_gather(whole, group)
    return whole


def zero_3_gradients(parts, lengths, forward, backward, share, reduce_scatter, all_gather, group=None):
    for i in range(len(parts)):
        forward(i, gather(parts[i], lengths[i], all_gather, group))
    own = [None] * len(parts)
    for i in reversed(range(len(parts))):
        gradient = backward(i, gather(parts[i], lengths[i], all_gather, group))
        own[i] = average_own(gradient, share, reduce_scatter, group)
        del gradient
    return own


def memory(stage, length, rank, world, parameter, gradient, state):
    part = own_part(length, rank, world)
    own = part.stop - part.start
    if stage == 0:
        return length * (parameter + gradient + state)
    if stage == 1:
        return length * (parameter + gradient) + own * state
    if stage == 2:
        return length * parameter + own * (gradient + state)
    return own * (parameter + gradient + state)
