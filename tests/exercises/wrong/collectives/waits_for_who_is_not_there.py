"""Receives from place + d also where there is none."""
# message: tree_reduce on 3 ranks.*: rank 2 receives from rank 0; the tree sends nothing to it there

import torch
import torch.distributed as dist


def tree_broadcast(tensor, root, group=None):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    place = (rank - root) % world
    for d in reversed(distances(world)):
        if place % (2 * d) == d:
            dist.recv(tensor, group_src=(root + place - d) % world, group=group)
        elif place % (2 * d) == 0 and place + d < world:
            dist.send(tensor, group_dst=(root + place + d) % world, group=group)


def tree_reduce(tensor, root, group=None):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    place = (rank - root) % world
    arriving = torch.empty_like(tensor)
    for d in distances(world):
        if place % (2 * d) == d:
            dist.send(tensor, group_dst=(root + place - d) % world, group=group)
            return
        dist.recv(arriving, group_src=(root + place + d) % world, group=group)
        tensor += arriving


def halving(tensor, ranks, group=None):
    me, p = ranks.index(dist.get_rank(group)), len(ranks)
    for d in reversed(distances(p)):
        mine = block(tensor, p, me, d)
        arriving = torch.empty_like(mine)
        exchange(block(tensor, p, me ^ d, d), arriving, ranks[me ^ d], group)
        mine += arriving


def doubling(tensor, ranks, group=None):
    me, p = ranks.index(dist.get_rank(group)), len(ranks)
    for d in distances(p):
        exchange(block(tensor, p, me, d), block(tensor, p, me ^ d, d), ranks[me ^ d], group)


def halving_doubling_all_reduce(tensor, group=None):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    pairs = world - greatest_power(world)
    waiting = range(0, 2 * pairs, 2)
    if rank in waiting:
        dist.send(tensor, group_dst=rank + 1, group=group)
        dist.recv(tensor, group_src=rank + 1, group=group)
        return
    if rank < 2 * pairs:
        arriving = torch.empty_like(tensor)
        dist.recv(arriving, group_src=rank - 1, group=group)
        tensor += arriving
    ranks = [r for r in range(world) if r not in waiting]
    halving(tensor, ranks, group)
    doubling(tensor, ranks, group)
    if rank < 2 * pairs:
        dist.send(tensor, group_dst=rank - 1, group=group)


def seconds(algorithm, world, size, latency, bandwidth):
    if algorithm == "ring":
        return 2 * (world - 1) * (latency + size / world / bandwidth)
    if algorithm == "tree":
        return 2 * len(distances(world)) * (latency + size / bandwidth)
    p = greatest_power(world)
    total = 2 * len(distances(p)) * latency + 2 * (p - 1) / p * size / bandwidth
    return total if p == world else total + 2 * (latency + size / bandwidth)


def fastest(world, size, latency, bandwidth):
    algorithms = ("ring", "tree", "halving_doubling")
    return min(algorithms, key=lambda algorithm: seconds(algorithm, world, size, latency, bandwidth))


def distances(world):
    return [2**i for i in range((world - 1).bit_length())]


def greatest_power(world):
    return 2 ** (world.bit_length() - 1)


def block(tensor, p, chunk, d):
    short, longer = divmod(tensor.numel(), p)
    begin, end = (c * short + min(c, longer) for c in (chunk // d * d, chunk // d * d + d))
    return tensor.view(-1)[begin:end]


def exchange(outgoing, incoming, partner, group):
    sending = dist.isend(outgoing, group=group, group_dst=partner)
    receiving = dist.irecv(incoming, group=group, group_src=partner)
    sending.wait()
    receiving.wait()
