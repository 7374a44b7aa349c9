"""Sends for ever what nobody receives."""

# passes: test_one_rank
# says: more than 20,000 things|more than 128 MB|operations that wait|had not finished
import torch.distributed as dist


def attack(tensor, group=None):
    while dist.get_world_size(group) > 1:
        dist.isend(tensor, (dist.get_rank() + 1) % dist.get_world_size())


ring_reduce_scatter = ring_all_gather = ring_all_reduce = attack
