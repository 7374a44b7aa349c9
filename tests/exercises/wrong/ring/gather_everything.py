"""The right sum, but everybody sends everything to everybody and adds up."""
# message: ring_all_reduce on 2 ranks.*: rank 0 sent the whole tensor in step 1; the ring sends chunk 0

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
    others = [other for other in range(world) if other != rank]
    received = [torch.empty_like(tensor) for _ in others]
    mine = tensor.clone()
    works = [dist.isend(mine, group=group, group_dst=other) for other in others]
    works += [dist.irecv(r, group=group, group_src=other) for other, r in zip(others, received, strict=True)]
    for work in works:
        work.wait()
    for r in received:
        tensor += r


def exchange(outgoing, incoming, group):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    sending = dist.isend(outgoing, group=group, group_dst=(rank + 1) % world)
    receiving = dist.irecv(incoming, group=group, group_src=(rank - 1) % world)
    sending.wait()
    receiving.wait()
