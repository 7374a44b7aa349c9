"""No root: everybody sends to everybody, and adds up."""
# message: rank 0 sent the whole tensor in step 1 with the numbers of rank 0 alone; .* rank 0 sends it with the sum

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
    others = [other for other in range(world) if other != rank]
    arriving = [torch.empty_like(tensor) for _ in others]
    works = [dist.isend(tensor.clone(), group=group, group_dst=other) for other in others]
    works += [dist.irecv(a, group=group, group_src=other) for a, other in zip(arriving, others, strict=True)]
    for work in works:
        work.wait()
    tensor += sum(arriving)
