"""The two halves are generators of what goes out and what comes in; one loop carries them out."""

import itertools

import torch.distributed as dist


def reduce_scatter_steps(rank, world):
    for i in range(world - 1):
        yield (rank - i) % world, (rank - i - 1) % world, True


def all_gather_steps(rank, world):
    for i in range(world - 1):
        yield (rank + 1 - i) % world, (rank - i) % world, False


def carry_out(tensor, group, *plans):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    flat = tensor.view(-1)
    sizes = [len(flat) // world + (k < len(flat) % world) for k in range(world)]
    chunks = flat.split(sizes)
    for out, own, add in itertools.chain(*(plan(rank, world) for plan in plans)):
        arriving = chunks[own].clone() if add else chunks[own]
        ops = [
            dist.P2POp(dist.isend, chunks[out].detach().clone(), group=group, group_peer=(rank + 1) % world),
            dist.P2POp(dist.irecv, arriving, group=group, group_peer=(rank + world - 1) % world),
        ]
        assert all(work.wait() for work in dist.batch_isend_irecv(ops))
        if add:
            chunks[own].add_(arriving)


def ring_reduce_scatter(tensor, group=None):
    carry_out(tensor, group, reduce_scatter_steps)


def ring_all_gather(tensor, group=None):
    carry_out(tensor, group, all_gather_steps)


def ring_all_reduce(tensor, group=None):
    carry_out(tensor, group, reduce_scatter_steps, all_gather_steps)
