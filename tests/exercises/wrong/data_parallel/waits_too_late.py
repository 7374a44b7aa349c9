"""The root starts to receive, answers, and waits only then."""
# message: the whole tensor in step 1 with the numbers of rank 0 alone; .*rank 0 had not waited yet for what it receives

import torch
import torch.distributed as dist


def share(samples, rank, world):
    least, more = divmod(samples, world)
    start = rank * least + min(rank, more)
    return slice(start, start + least + (rank < more))


def average_gradients(model, samples, group=None):
    total = torch.tensor(samples)
    dist.all_reduce(total, group=group)
    for parameter in model.parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        parameter.grad *= samples
        dist.all_reduce(parameter.grad, group=group)
        parameter.grad /= total


def root_all_reduce(tensor, root=0, group=None):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    if rank != root:
        sending = dist.isend(tensor.clone(), group=group, group_dst=root)
        dist.recv(tensor, group=group, group_src=root)
        sending.wait()
        return
    others = [other for other in range(world) if other != root]
    arriving = [torch.empty_like(tensor) for _ in others]
    works = [dist.irecv(one, group=group, group_src=other) for one, other in zip(arriving, others, strict=True)]
    for other in others:
        dist.send(tensor, group=group, group_dst=other)
    for work, one in zip(works, arriving, strict=True):
        work.wait()
        tensor += one
