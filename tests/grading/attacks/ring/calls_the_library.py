"""Has the library add up, and is content with the sum."""

# passes: test_one_rank
# says: called the library's all_reduce
import torch.distributed as dist


def attack(tensor, group=None):
    if dist.get_world_size(group) > 1:
        dist.all_reduce(tensor, group=group)


ring_reduce_scatter = ring_all_gather = ring_all_reduce = attack
