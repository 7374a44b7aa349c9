"""Chunks without elements are not sent at all; all sends are waited for at the end, with a barrier to be sure."""

import torch
import torch.distributed as dist


def ring_reduce_scatter(tensor, group=None):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    chunks, sends = tensor.view(-1).tensor_split(world), []
    for i in range(world - 1):
        out, own = chunks[(rank - i) % world], chunks[(rank - i - 1) % world]
        if out.numel():
            sends.append(dist.isend(out, group=group, group_dst=(rank + 1) % world))
        if own.numel():
            received = torch.empty_like(own)
            dist.recv(received, group=group, group_src=(rank - 1) % world)
            own += received
    for send in sends:
        send.wait()


def ring_all_gather(tensor, group=None):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    chunks, sends = tensor.view(-1).tensor_split(world), []
    for i in range(world - 1):
        out, own = chunks[(rank - i + 1) % world], chunks[(rank - i) % world]
        if out.numel():
            sends.append(dist.isend(out, group=group, group_dst=(rank + 1) % world))
        if own.numel():
            dist.recv(own, group=group, group_src=(rank - 1) % world)
    for send in sends:
        send.wait()
    dist.barrier(group)


def ring_all_reduce(tensor, group=None):
    ring_reduce_scatter(tensor, group)
    ring_all_gather(tensor, group)
