"""Bits of the place say who talks to whom; who has the lower number of a pair sends first; a copy is written back."""

import numpy as np
import torch
import torch.distributed as dist


def tree_broadcast(tensor, root, group=None):
    world = dist.get_world_size(group)
    place = (dist.get_rank(group) - root + world) % world
    mask = 1
    while mask < world and not place & mask:
        mask <<= 1
    if place:
        dist.irecv(tensor, group=group, group_src=(place - mask + root) % world).wait()
    while mask > 1:
        mask >>= 1
        if place + mask < world:
            dist.isend(tensor, group=group, group_dst=(place + mask + root) % world).wait()


def tree_reduce(tensor, root, group=None):
    world = dist.get_world_size(group)
    place, mask, total = (dist.get_rank(group) - root + world) % world, 1, tensor.clone()
    while mask < world:
        if place & mask:
            dist.send(total, group=group, group_dst=((place ^ mask) + root) % world)
            break
        if (place | mask) < world:
            arriving = torch.empty_like(total)
            dist.recv(arriving, group=group, group_src=((place | mask) + root) % world)
            total = total + arriving
        mask <<= 1
    tensor.copy_(total)


def edges(tensor, parts):
    return np.cumsum([0] + [len(chunk) for chunk in np.array_split(np.empty(tensor.numel()), parts)]).tolist()


def swap(outgoing, incoming, me, partner, ranks, group):
    """The lower number sends first; messages without elements are left out."""
    for sender in sorted((me, partner)):
        if sender == me and outgoing.numel():
            dist.send(outgoing, group_dst=ranks[partner], group=group)
        if sender == partner and incoming.numel():
            dist.recv(incoming, group_src=ranks[partner], group=group)


def halving(tensor, ranks, group=None):
    me, edge, values = ranks.index(dist.get_rank(group)), edges(tensor, len(ranks)), tensor.flatten().clone()
    bit = len(ranks) >> 1
    while bit:
        partner = me ^ bit
        mine, theirs = (slice(edge[n & -bit], edge[(n & -bit) + bit]) for n in (me, partner))
        incoming = torch.zeros_like(values[mine])
        swap(values[theirs], incoming, me, partner, ranks, group)
        values[mine] += incoming
        bit >>= 1
    tensor.copy_(values.view_as(tensor))


def doubling(tensor, ranks, group=None):
    me, edge, values = ranks.index(dist.get_rank(group)), edges(tensor, len(ranks)), tensor.view(-1)
    bit = 1
    while bit < len(ranks):
        partner = me ^ bit
        mine, theirs = (slice(edge[n & -bit], edge[(n & -bit) + bit]) for n in (me, partner))
        swap(values[mine], values[theirs], me, partner, ranks, group)
        bit <<= 1


def halving_doubling_all_reduce(tensor, group=None):
    me, world = dist.get_rank(group), dist.get_world_size(group)
    power = 1
    while power * 2 <= world:
        power *= 2
    ranks = [r for r in range(world) if r >= 2 * (world - power) or r % 2]
    partner = me ^ 1 if me < 2 * (world - power) else None
    if partner is not None and me not in ranks:
        dist.send(tensor, group_dst=partner, group=group)
    elif partner is not None:
        theirs = torch.empty_like(tensor)
        dist.recv(theirs, group_src=partner, group=group)
        tensor += theirs
    if me in ranks:
        halving(tensor, ranks, group)
        doubling(tensor, ranks, group)
    if partner is not None and me in ranks:
        dist.send(tensor, group_dst=partner, group=group)
    elif partner is not None:
        dist.recv(tensor, group_src=partner, group=group)


def steps(algorithm, world):
    """How much of the tensor moves in each step."""
    if algorithm == "ring":
        return np.full(2 * (world - 1), 1 / world)
    rounds = np.arange(int(np.ceil(np.log2(world))))
    if algorithm == "tree":
        return np.ones(2 * len(rounds))
    power = 2 ** int(np.floor(np.log2(world)))
    once = [1.0] * (power != world) + [2.0 ** -(i + 1) for i in range(int(np.log2(power)))]
    return np.array(once * 2)


def seconds(algorithm, world, size, latency, bandwidth):
    return float((latency + steps(algorithm, world) * size / bandwidth).sum())


def fastest(world, size, latency, bandwidth):
    """The tree never is."""
    return min("ring", "halving_doubling", key=lambda name: seconds(name, world, size, latency, bandwidth))
