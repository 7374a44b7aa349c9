"""The all-reduce as one loop over all 2(N-1) steps; the halves are the same loop, cut short or begun late."""

import torch
import torch.distributed as dist


def turn(tensor, group, steps, add_until):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    chunks = tensor.view(-1).tensor_split(world)
    for s in steps:
        outgoing, own = chunks[(rank - s) % world], chunks[(rank - s - 1) % world]
        incoming = torch.empty_like(own)
        sending = dist.isend(outgoing, group=group, group_dst=(rank + 1) % world)
        dist.irecv(incoming, group=group, group_src=(rank - 1) % world).wait()
        sending.wait()
        own.copy_(own + incoming if s < add_until else incoming)


def ring_reduce_scatter(tensor, group=None):
    world = dist.get_world_size(group)
    turn(tensor, group, range(world - 1), add_until=world - 1)


def ring_all_gather(tensor, group=None):
    world = dist.get_world_size(group)
    turn(tensor, group, range(world - 1, 2 * (world - 1)), add_until=0)


def ring_all_reduce(tensor, group=None):
    world = dist.get_world_size(group)
    turn(tensor, group, range(2 * (world - 1)), add_until=world - 1)
