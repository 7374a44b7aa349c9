"""Sends copies of another dtype: other bytes than the tensor's."""
# message: on 2 ranks.*: rank 0 sent float64 in step 1; its tensor holds int64: send the elements as they are

import torch
import torch.distributed as dist


def ring_reduce_scatter(tensor, group=None):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    chunks = tensor.view(-1).tensor_split(world)
    for i in range(world - 1):
        own = chunks[(rank - i - 1) % world]
        received = torch.empty_like(own)
        exchange(chunks[(rank - i) % world], received, group)
        own += received


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
    received = torch.empty(incoming.shape, dtype=torch.float64)
    sending = dist.isend(outgoing.double(), group=group, group_dst=(rank + 1) % world)
    dist.irecv(received, group=group, group_src=(rank - 1) % world).wait()
    sending.wait()
    incoming.copy_(received)
