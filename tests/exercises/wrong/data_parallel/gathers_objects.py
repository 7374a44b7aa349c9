"""Gathers everybody's gradients, pickled, on every rank."""
# message: 2 \+ 2 samples: rank 0 sent its gradients as objects, pickled: let them travel as the tensors

import torch
import torch.distributed as dist


def share(samples, rank, world):
    least, more = divmod(samples, world)
    start = rank * least + min(rank, more)
    return slice(start, start + least + (rank < more))


def average_gradients(model, samples, group=None):
    for parameter in model.parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    mine = samples, [parameter.grad for parameter in model.parameters()]
    everybody = [None] * dist.get_world_size(group)
    dist.all_gather_object(everybody, mine, group=group)
    total = sum(count for count, _ in everybody)
    for place, parameter in enumerate(model.parameters()):
        parameter.grad = sum(count / total * gradients[place] for count, gradients in everybody)


def root_all_reduce(tensor, root=0, group=None):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    if rank != root:
        dist.send(tensor, group=group, group_dst=root)
        dist.recv(tensor, group=group, group_src=root)
        return
    others = [other for other in range(world) if other != root]
    arriving = torch.empty_like(tensor)
    for other in others:
        dist.recv(arriving, group=group, group_src=other)
        tensor += arriving
    for other in others:
        dist.send(tensor, group=group, group_dst=other)
