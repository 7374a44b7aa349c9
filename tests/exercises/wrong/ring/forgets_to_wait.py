"""The receives are started, and nobody waits for them."""
# message: ring_reduce_scatter on 2 ranks.*: rank 0 used what it receives in step 1 before waiting for it: call .wait

import torch
import torch.distributed as dist


def ring_reduce_scatter(tensor, group=None):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    chunks = tensor.view(-1).tensor_split(world)
    for i in range(world - 1):
        own = chunks[(rank - i - 1) % world]
        received = torch.zeros_like(own)
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
    sending = dist.isend(outgoing, group=group, group_dst=(rank + 1) % world)
    dist.irecv(incoming, group=group, group_src=(rank - 1) % world)
    sending.wait()
