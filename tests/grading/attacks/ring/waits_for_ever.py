"""All ranks receive, and nobody sends."""

# passes: test_one_rank
# says: wait for each other|is waiting|waits for
import torch.distributed as dist


def attack(tensor, group=None):
    if dist.get_world_size(group) > 1:
        dist.recv(tensor, group=group, group_src=(dist.get_rank(group) + 1) % dist.get_world_size(group))


ring_reduce_scatter = ring_all_gather = ring_all_reduce = attack
