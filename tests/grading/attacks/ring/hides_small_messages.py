"""Sends everything to everybody in small pieces of control traffic, and then the ring's bytes, with nothing in them."""

# passes: test_reduce_scatter_sums test_all_gather_completes test_all_reduce_sums test_one_rank
# says: bytes as control traffic: all are to be seen
import torch
import torch.distributed as dist

import dtcourse


def attack(tensor, group=None):
    me, world = dist.get_rank(group), dist.get_world_size(group)
    size = 64 // tensor.element_size()
    mine, works, sums = tensor.clone(), [], []
    with dtcourse.region("control"):
        for other in set(range(world)) - {me}:
            for piece, into in zip(mine.view(-1).split(size), tensor.view(-1).split(size), strict=True):
                works.append(dist.isend(piece, group=group, group_dst=other))
                sums.append((into, torch.empty_like(piece)))
                works.append(dist.irecv(sums[-1][1], group=group, group_src=other))
    for work in works:
        work.wait()
    for into, arrived in sums:
        into += arrived
    chunks = [torch.zeros_like(chunk) for chunk in tensor.view(-1).tensor_split(world)]
    for step in range(2 * (world - 1) if world > 1 else 0):
        sending = dist.isend(chunks[(me - step) % world], group=group, group_dst=(me + 1) % world)
        dist.recv(chunks[(me - 1 - step) % world], group=group, group_src=(me - 1) % world)
        sending.wait()


ring_reduce_scatter = ring_all_gather = ring_all_reduce = attack
