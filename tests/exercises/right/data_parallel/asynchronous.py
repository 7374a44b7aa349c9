"""All all-reduces are started, then all are waited for; shares as lists; sends and receives in a batch."""

import torch
import torch.distributed as dist


def share(samples, rank, world):
    shares, begin = [], 0
    for r in range(world):
        size = samples // world + (1 if r < samples % world else 0)
        shares.append(list(range(begin, begin + size)))
        begin += size
    return shares[rank]


def average_gradients(model, samples, group=None):
    total = torch.tensor([float(samples)])
    works = [dist.all_reduce(total, group=group, async_op=True)]
    for p in model.parameters():
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad * samples
        works.append(dist.all_reduce(p.grad, group=group, async_op=True))
    for work in works:
        work.wait()
    for p in model.parameters():
        p.grad.div_(total.item())


def root_all_reduce(tensor, root=0, group=None):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    others = [other for other in range(world) if other != root]
    if not others:
        return
    if rank != root:
        together([dist.P2POp(dist.isend, tensor, group=group, group_peer=root)])
        together([dist.P2POp(dist.irecv, tensor, group=group, group_peer=root)])
        return
    arriving = tensor.new_empty(len(others), *tensor.shape)
    together([dist.P2POp(dist.irecv, a, group=group, group_peer=o) for a, o in zip(arriving, others, strict=True)])
    tensor.add_(arriving.sum(0))
    together([dist.P2POp(dist.isend, tensor, group=group, group_peer=o) for o in others])


def together(messages):
    for work in dist.batch_isend_irecv(messages):
        work.wait()
