"""Some ranks dawdle, and barriers keep them together; random is seeded anew and nobody minds."""

import random
import time

import torch
import torch.distributed as dist

random.seed(7)
torch.manual_seed(7)


def exchange(out, into, group):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    time.sleep(random.random() * 0.002 * rank)
    if rank == 0:
        receiving = dist.irecv(into, group=group, group_src=world - 1)
        dist.send(out, group=group, group_dst=1)
        receiving.wait()
    else:
        sending = dist.isend(out, group=group, group_dst=(rank + 1) % world)
        dist.recv(into, group=group, group_src=rank - 1)
        sending.wait()


def ring_reduce_scatter(tensor, group=None):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    chunks = tensor.view(-1).tensor_split(world)
    for i in range(world - 1):
        own = chunks[(rank - i - 1) % world]
        into = torch.empty_like(own)
        exchange(chunks[(rank - i) % world], into, group)
        own += into
    dist.barrier(group)


def ring_all_gather(tensor, group=None):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    chunks = tensor.view(-1).tensor_split(world)
    for i in range(world - 1):
        exchange(chunks[(rank - i + 1) % world], chunks[(rank - i) % world], group)
    dist.barrier(group)


def ring_all_reduce(tensor, group=None):
    ring_reduce_scatter(tensor, group)
    ring_all_gather(tensor, group)
