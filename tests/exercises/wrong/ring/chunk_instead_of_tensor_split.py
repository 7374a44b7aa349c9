"""torch.chunk makes chunks of another size, and sometimes fewer."""
# message: ring_reduce_scatter on 2 ranks, 1 element each: rank \d raised IndexError: tuple index out of range

import torch
import torch.distributed as dist


def ring_reduce_scatter(tensor, group=None):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    chunks = tensor.view(-1).chunk(world)
    for i in range(world - 1):
        own = chunks[(rank - i - 1) % world]
        received = torch.empty_like(own)
        exchange(chunks[(rank - i) % world], received, group)
        own += received


def ring_all_gather(tensor, group=None):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    chunks = tensor.view(-1).chunk(world)
    for i in range(world - 1):
        exchange(chunks[(rank - i + 1) % world], chunks[(rank - i) % world], group)


def ring_all_reduce(tensor, group=None):
    ring_reduce_scatter(tensor, group)
    ring_all_gather(tensor, group)


def exchange(outgoing, incoming, group):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    sending = dist.isend(outgoing, group=group, group_dst=(rank + 1) % world)
    receiving = dist.irecv(incoming, group=group, group_src=(rank - 1) % world)
    sending.wait()
    receiving.wait()
