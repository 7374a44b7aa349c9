"""All receives are posted before the first message is sent, each into a buffer of its own."""

import torch
import torch.distributed as dist


def pipeline(tensor, group, offset, take):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    chunks = tensor.view(-1).tensor_split(world)
    order = [(rank - i + offset) % world for i in range(world)]
    buffers = [torch.empty_like(chunks[k]) for k in order[1:]]
    receives = [dist.irecv(buffer, group=group, group_src=(rank - 1) % world) for buffer in buffers]
    sends = []
    for out, own, buffer, receive in zip(order, order[1:], buffers, receives, strict=False):
        sends.append(dist.isend(chunks[out], group=group, group_dst=(rank + 1) % world))
        receive.wait()
        take(chunks[own], buffer)
    for send in sends:
        send.wait()


def ring_reduce_scatter(tensor, group=None):
    pipeline(tensor, group, 0, torch.Tensor.add_)


def ring_all_gather(tensor, group=None):
    pipeline(tensor, group, 1, torch.Tensor.copy_)


def ring_all_reduce(tensor, group=None):
    ring_reduce_scatter(tensor, group)
    ring_all_gather(tensor, group)
