"""Talks to the whole world, whatever group it is given."""
# message: ring_all_reduce on 5 ranks.*: .*wait.* for what will never come; .*already returned(.|\n)*get `group`

import torch
import torch.distributed as dist


def ring_reduce_scatter(tensor, group=None):
    rank, world = dist.get_rank(), dist.get_world_size()
    chunks = tensor.view(-1).tensor_split(world)
    for i in range(world - 1):
        own = chunks[(rank - i - 1) % world]
        received = torch.empty_like(own)
        exchange(chunks[(rank - i) % world], received, group)
        own += received


def ring_all_gather(tensor, group=None):
    rank, world = dist.get_rank(), dist.get_world_size()
    chunks = tensor.view(-1).tensor_split(world)
    for i in range(world - 1):
        exchange(chunks[(rank - i + 1) % world], chunks[(rank - i) % world], group)


def ring_all_reduce(tensor, group=None):
    ring_reduce_scatter(tensor, group)
    ring_all_gather(tensor, group)


def exchange(outgoing, incoming, group):
    rank, world = dist.get_rank(), dist.get_world_size()
    sending = dist.isend(outgoing, dst=(rank + 1) % world)
    receiving = dist.irecv(incoming, src=(rank - 1) % world)
    sending.wait()
    receiving.wait()
