"""The gradients travel in messages, through a root, as one vector; shares as torch cuts them."""

import torch
import torch.distributed as dist


def share(samples, rank, world):
    own = torch.arange(samples).tensor_split(world)[rank]
    return slice(int(own[0]), int(own[-1]) + 1) if len(own) else slice(0, 0)


def average_gradients(model, samples, group=None):
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    vector = torch.cat([samples * g.flatten() for g in gradients] + [torch.tensor([samples])])
    root_all_reduce(vector, group=group)
    *averaged, _ = (vector / vector[-1]).split([g.numel() for g in gradients] + [1])
    for parameter, gradient in zip(model.parameters(), averaged, strict=True):
        parameter.grad = gradient.view_as(parameter)


def root_all_reduce(tensor, root=0, group=None):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    others = [other for other in range(world) if other != root]
    if rank == root:
        arriving = [torch.empty_like(tensor) for _ in others]
        works = [dist.irecv(a, group=group, group_src=o) for a, o in zip(arriving, others, strict=True)]
        for work, one in zip(works, arriving, strict=True):
            work.wait()
            tensor += one
        for work in [dist.isend(tensor, group=group, group_dst=other) for other in reversed(others)]:
            work.wait()
    else:
        dist.isend(tensor, group=group, group_dst=root).wait()
        dist.irecv(tensor, group=group, group_src=root).wait()
