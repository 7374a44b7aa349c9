"""The right sum, but all-reduced through rank 0."""
# message: ring_all_reduce on 2 ranks.*: rank 1 sent the whole tensor in step 1; the ring sends chunk 1

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
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    if rank:
        dist.send(tensor, group=group, group_dst=0)
        dist.recv(tensor, group=group, group_src=0)
        return
    received = torch.empty_like(tensor)
    for other in range(1, world):
        dist.recv(received, group=group, group_src=other)
        tensor += received
    for other in range(1, world):
        dist.send(tensor, group=group, group_dst=other)


def exchange(outgoing, incoming, group):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    sending = dist.isend(outgoing, group=group, group_dst=(rank + 1) % world)
    receiving = dist.irecv(incoming, group=group, group_src=(rank - 1) % world)
    sending.wait()
    receiving.wait()
