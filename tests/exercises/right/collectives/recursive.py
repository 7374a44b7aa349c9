"""Recursion: trees that call themselves on a half, halves that call themselves on half of the ranks."""

import math

import torch
import torch.distributed as dist


def tree_broadcast(tensor, root, group=None):
    world = dist.get_world_size(group)
    reach = 2 ** math.ceil(math.log2(world))

    def spread(holder, size):
        """The place `holder` has it; `size` places from there on are to get it."""
        if size == 1:
            return
        half, place = size // 2, (dist.get_rank(group) - root) % world
        other = holder + half
        if other < world:
            if place == holder:
                dist.send(tensor, group_dst=(other + root) % world, group=group)
            if place == other:
                dist.recv(tensor, group_src=(holder + root) % world, group=group)
        spread(holder if place < other else other, half)

    spread(0, reach)


def tree_reduce(tensor, root, group=None):
    world = dist.get_world_size(group)
    place = (dist.get_rank(group) - root) % world

    def collect(first, size):
        """The sum of `size` places from `first` on goes to the place `first`."""
        if size == 1 or place >= first + size:
            return
        half = size // 2
        other = first + half
        collect(other if place >= other else first, half)
        if other >= world:
            return
        if place == other:
            dist.send(tensor, group_dst=(root + first) % world, group=group)
        elif place == first:
            part = tensor.clone()
            dist.recv(part, group_src=(root + other) % world, group=group)
            tensor.add_(part)

    collect(0, 2 ** math.ceil(math.log2(world)))


def halving(tensor, ranks, group=None):
    me = list(ranks).index(dist.get_rank(group))
    chunks = tensor.view(-1).tensor_split(len(ranks))
    starts = [0]
    for chunk in chunks:
        starts.append(starts[-1] + chunk.numel())

    def half(first, stop):
        """The chunks first to stop - 1 are mine to sum."""
        if stop - first == 1:
            return
        middle = (first + stop) // 2
        low, high = (tensor.view(-1)[starts[a] : starts[b]] for a, b in ((first, middle), (middle, stop)))
        keep, give, partner = (low, high, me + middle - first) if me < middle else (high, low, me - middle + first)
        got = keep.clone()
        both([(dist.irecv, got), (dist.isend, give)], ranks[partner], group)
        keep.add_(got)
        half(*((first, middle) if me < middle else (middle, stop)))

    half(0, len(ranks))


def doubling(tensor, ranks, group=None):
    me = list(ranks).index(dist.get_rank(group))
    starts = [0]
    for chunk in tensor.view(-1).tensor_split(len(ranks)):
        starts.append(starts[-1] + chunk.numel())

    def whole(first, stop):
        """Afterwards I have the chunks first to stop - 1."""
        if stop - first == 1:
            return
        middle = (first + stop) // 2
        whole(*((first, middle) if me < middle else (middle, stop)))
        low, high = (tensor.view(-1)[starts[a] : starts[b]] for a, b in ((first, middle), (middle, stop)))
        mine, theirs, partner = (low, high, me + middle - first) if me < middle else (high, low, me - middle + first)
        both([(dist.irecv, theirs), (dist.isend, mine)], ranks[partner], group)

    whole(0, len(ranks))


def both(operations, partner, group):
    for work in dist.batch_isend_irecv([dist.P2POp(op, x, group=group, group_peer=partner) for op, x in operations]):
        work.wait()


def halving_doubling_all_reduce(tensor, group=None):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    extra = world - 2 ** int(math.log2(world))
    folded = rank < 2 * extra
    if folded and rank % 2 == 0:
        dist.send(tensor, group_dst=rank + 1, group=group)
        return dist.recv(tensor, group_src=rank + 1, group=group) and None
    if folded:
        part = torch.zeros_like(tensor)
        dist.recv(part, group_src=rank - 1, group=group)
        tensor.add_(part)
    ranks = list(range(1, 2 * extra, 2)) + list(range(2 * extra, world))
    halving(tensor, ranks, group)
    doubling(tensor, ranks, group)
    if folded:
        dist.send(tensor, group_dst=rank - 1, group=group)


def seconds(algorithm, world, size, latency, bandwidth):
    step = lambda part: latency + part / bandwidth  # noqa: E731
    if world == 1:
        return 0
    if algorithm == "ring":
        return sum(step(size / world) for _ in range(2 * world - 2))
    if algorithm == "tree":
        return 2 * math.ceil(math.log2(world)) * step(size)
    power = 2 ** int(math.log2(world))
    if power < world:
        return 2 * step(size) + seconds(algorithm, power, size, latency, bandwidth)
    return 2 * step(size / 2) + seconds(algorithm, world // 2, size / 2, latency, bandwidth)


def fastest(world, size, latency, bandwidth):
    times = {a: seconds(a, world, size, latency, bandwidth) for a in ("halving_doubling", "ring", "tree")}
    return sorted(times, key=times.get)[0]
