"""The all-gather sends whole tensors and takes one chunk out of each."""
# message: ring_all_gather on 2 ranks.*: rank 0 sent the whole tensor in step 1; the ring sends chunk 1

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
        received = torch.empty_like(tensor)
        exchange(tensor, received, group)
        chunks[(rank - i) % world].copy_(received.view(-1).tensor_split(world)[(rank - i) % world])


def ring_all_reduce(tensor, group=None):
    ring_reduce_scatter(tensor, group)
    ring_all_gather(tensor, group)


def exchange(outgoing, incoming, group):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    sending = dist.isend(outgoing, group=group, group_dst=(rank + 1) % world)
    receiving = dist.irecv(incoming, group=group, group_src=(rank - 1) % world)
    sending.wait()
    receiving.wait()
