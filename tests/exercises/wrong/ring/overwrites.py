"""The reduce-scatter overwrites where it should add."""
# message: on 3 ranks.*: rank 0 sent chunk 2 in step 2 with the numbers of rank 2 alone; the ring .* the sum

import torch
import torch.distributed as dist


def ring_reduce_scatter(tensor, group=None):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    chunks = tensor.view(-1).tensor_split(world)
    for i in range(world - 1):
        own = chunks[(rank - i - 1) % world]
        received = torch.empty_like(own)
        exchange(chunks[(rank - i) % world], received, group)
        own.copy_(received)


def ring_all_gather(tensor, group=None):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    chunks = tensor.view(-1).tensor_split(world)
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
