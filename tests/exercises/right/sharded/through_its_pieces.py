"""The second stage by the third's way back, the first by a layer that is all of the model."""

import torch.distributed as dist


def own_part(length, rank, world):
    def start(chunk):
        return chunk * (length // world) + min(chunk, length % world)

    chunk = (rank + 1) % world
    return slice(start(chunk), start(chunk + 1))


def average_own(gradient, share, reduce_scatter, group=None):
    return zero_2_gradients(1, lambda _: gradient, share, reduce_scatter, group)[0]


def zero_1_step(parameters, gradient, share, update, reduce_scatter, all_gather, group=None):
    (own,) = zero_2_gradients(1, lambda _: gradient, share, reduce_scatter, group)
    update(parameters[own_part(len(parameters), dist.get_rank(group), dist.get_world_size(group))], own)
    all_gather(parameters, group)


def back_through(i, backward, share, reduce_scatter, group):
    gradient = backward(i).mul_(share)
    reduce_scatter(gradient, group)
    return gradient[own_part(gradient.numel(), dist.get_rank(group), dist.get_world_size(group))].clone()


def zero_2_gradients(layers, backward, share, reduce_scatter, group=None):
    found = {i: back_through(i, backward, share, reduce_scatter, group) for i in range(layers)[::-1]}
    return [found[i] for i in range(layers)]


def gather(own, length, all_gather, group=None):
    part = own_part(length, dist.get_rank(group), dist.get_world_size(group))
    before, after = own.new_zeros(part.start), own.new_zeros(length - part.stop)
    whole = own.new_zeros(0).new_empty(length)
    whole[: part.start], whole[part], whole[part.stop :] = before, own, after
    all_gather(whole, group)
    return whole


def zero_3_gradients(parts, lengths, forward, backward, share, reduce_scatter, all_gather, group=None):
    def layer(i):
        return gather(parts[i], lengths[i], all_gather, group)

    for i in range(len(parts)):
        forward(i, layer(i))
    return zero_2_gradients(len(parts), lambda i: backward(i, layer(i)), share, reduce_scatter, group)


def memory(stage, length, rank, world, parameter, gradient, state):
    own = len(range(length)[own_part(length, rank, world)])
    always = [length * (parameter + gradient + state), length * (parameter + gradient), length * parameter, 0]
    sharded = [0, own * state, own * (gradient + state), own * (parameter + gradient + state)]
    return always[stage] + sharded[stage]
