"""Sends everything to everybody as control traffic, and then plays the ring."""

# passes: test_one_rank test_reduce_scatter_sums test_all_reduce_sums
# says: sends|sent
import torch
import torch.distributed as dist

from dtcourse import region


def attack(tensor, group=None):
    me, world = dist.get_rank(group), dist.get_world_size(group)
    mine, works = torch.cat([tensor.flatten()] * 9), []
    with region("control"):
        everybody = [torch.empty_like(mine) for _ in range(world)]
        for other in range(world):
            if other != me:
                works.append(dist.isend(mine, group_dst=other, group=group))
                works.append(dist.irecv(everybody[other], group_src=other, group=group))
    for work in works:
        work.wait()
    for other in range(world):
        if other != me:
            tensor += everybody[other][: tensor.numel()].view_as(tensor)


ring_reduce_scatter = ring_all_gather = ring_all_reduce = attack
