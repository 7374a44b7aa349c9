"""First a plan, (what, with whom, from where to where) in turn, then one loop that carries it out."""

from collections import namedtuple

import torch
import torch.distributed as dist

Do = namedtuple("Do", "what partner begin stop")  # "send", "get", "add"; neighbours of equal partner go together


def carry_out(tensor, plan, group):
    flat = tensor.view(-1)
    for together in plan:
        works, added = [], []
        for do in together:
            part = flat[do.begin : do.stop]
            if do.what == "send":
                works.append(dist.isend(part, group=group, group_dst=do.partner))
                continue
            into = part.new_zeros(part.shape) if do.what == "add" else part
            works.append(dist.irecv(into, group=group, group_src=do.partner))
            if do.what == "add":
                added.append((part, into))
        for work in works:
            work.wait()
        for part, into in added:
            part += into


def family(place, world):
    """Its parent, if it has one, and its children, the nearest first."""
    parent, children, d = None, [], 1
    while d < world:
        if place % (2 * d):
            parent = place - d
            break
        children += [place + d] if place + d < world else []
        d *= 2
    return parent, children


def tree_broadcast(tensor, root, group=None):
    world, size = dist.get_world_size(group), tensor.numel()
    parent, children = family((dist.get_rank(group) - root) % world, world)
    plan = [] if parent is None else [[Do("get", (parent + root) % world, 0, size)]]
    plan += [[Do("send", (child + root) % world, 0, size)] for child in reversed(children)]
    carry_out(tensor, plan, group)


def tree_reduce(tensor, root, group=None):
    world, size = dist.get_world_size(group), tensor.numel()
    parent, children = family((dist.get_rank(group) - root) % world, world)
    plan = [[Do("add", (child + root) % world, 0, size)] for child in children]
    plan += [] if parent is None else [[Do("send", (parent + root) % world, 0, size)]]
    carry_out(tensor, plan, group)


def blocks(tensor, ranks, group):
    """For each distance: the partner, my block, and the partner's block, each as (begin, stop)."""
    p, me = len(ranks), ranks.index(dist.get_rank(group))
    pieces = torch.arange(tensor.numel()).tensor_split(p)
    begin = [sum(map(len, pieces[:k])) for k in range(p + 1)]
    for exponent in range(p.bit_length() - 1):
        d = 2**exponent
        yield ranks[me ^ d], *((begin[k // d * d], begin[k // d * d + d]) for k in (me, me ^ d))


def halving_plan(tensor, ranks, group):
    there = list(blocks(tensor, ranks, group))
    return [[Do("send", partner, *theirs), Do("add", partner, *mine)] for partner, mine, theirs in reversed(there)]


def doubling_plan(tensor, ranks, group):
    there = blocks(tensor, ranks, group)
    return [[Do("send", partner, *mine), Do("get", partner, *theirs)] for partner, mine, theirs in there]


def halving(tensor, ranks, group=None):
    carry_out(tensor, halving_plan(tensor, ranks, group), group)


def doubling(tensor, ranks, group=None):
    carry_out(tensor, doubling_plan(tensor, ranks, group), group)


def halving_doubling_all_reduce(tensor, group=None):
    rank, world, size = dist.get_rank(group), dist.get_world_size(group), tensor.numel()
    power = max(2**k for k in range(world) if 2**k <= world)
    even = set(range(0, 2 * (world - power), 2))
    if rank in even:
        plan = [[Do("send", rank + 1, 0, size)], [Do("get", rank + 1, 0, size)]]
    else:
        ranks = sorted(set(range(world)) - even)
        plan = [[Do("add", rank - 1, 0, size)]] if rank - 1 in even else []
        plan += halving_plan(tensor, ranks, group) + doubling_plan(tensor, ranks, group)
        plan += [[Do("send", rank - 1, 0, size)]] if rank - 1 in even else []
    carry_out(tensor, plan, group)


def seconds(algorithm, world, size, latency, bandwidth):
    shares = {"ring": [1 / world] * (world - 1), "tree": [], "halving_doubling": []}
    d = 1
    while d < world:
        shares["tree"].append(1)
        d *= 2
    power = d if d == world else d // 2
    while power > 1:
        shares["halving_doubling"].append(1 / power)
        power //= 2
    if d != world:
        shares["halving_doubling"].append(1)
    return sum(2 * latency + 2 * share * size / bandwidth for share in shares[algorithm])


def fastest(*network):
    return min((seconds(name, *network), name) for name in ("ring", "tree", "halving_doubling"))[1]
