"""Binomial trees: in each round twice as many ranks are done as before, so N ranks take ceil(log2 N) rounds.

Reduce: in the rounds with distance 1, 2, 4, ... every second rank of those that are left sends its sum to the rank
`distance` below it, and is done. Broadcast: the same tree backwards in time, from the greatest distance to 1: who has
the tensor sends it to the rank `distance` above. Reduce, then broadcast, is an all-reduce. For N = 6 and root 0, to
which rank each rank sends in each round:

    distance          1  2  4 | 4  2  1
    rank 0 sends to   -  -  - | 4  2  1
    rank 1 sends to   0  -  - | -  -  -
    rank 2 sends to   -  0  - | -  -  3
    rank 3 sends to   2  -  - | -  -  -
    rank 4 sends to   -  -  0 | -  -  5
    rank 5 sends to   4  -  - | -  -  -

Any other root: the same with ranks counted from the root on, modulo N.

Cost of the all-reduce: 2 ceil(log2 N) (a + S b) with latency a and b seconds a byte, and one latency less if N is no
power of two: down, a rank sends on at once, and no branch has all rounds in it. That is few steps, and so good for
small tensors, but each one moves the whole tensor. A rank sends S to each of its children, and S to its parent: the
root sends ceil(log2 N) S, and half of the ranks just S.

All-gather: up the tree each rank sends the chunks that it has so far, and down the whole tensor.

Source: the binomial trees of MPICH, in Thakur, Rabenseifner and Gropp, "Optimization of collective communication
operations in MPICH" (2005).
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from dtcourse.collectives.chunks import chunk_range, flat


def tree_all_reduce(tensor: torch.Tensor, group: dist.ProcessGroup | None = None) -> None:
    """Sum `tensor` (any shape, contiguous) over the ranks of `group`, in place, on every rank."""
    tree_reduce(tensor, 0, group)
    tree_broadcast(tensor, 0, group)


def tree_reduce(tensor: torch.Tensor, root: int = 0, group: dist.ProcessGroup | None = None) -> None:
    """Sum over the ranks of `group`, in place: afterwards rank `root` of it has it, the others partial sums."""
    place, world = place_above(root, group), dist.get_world_size(group)
    contribution = torch.empty_like(flat(tensor))
    for distance in distances(world):
        if place % (2 * distance) == distance:
            dist.send(flat(tensor), group_dst=(root + place - distance) % world, group=group)
            return
        if place + distance < world:
            dist.recv(contribution, group_src=(root + place + distance) % world, group=group)
            flat(tensor).add_(contribution)


def tree_broadcast(tensor: torch.Tensor, root: int = 0, group: dist.ProcessGroup | None = None) -> None:
    """Give every rank of `group` the tensor of its rank `root`, in place. Any shape, the same everywhere."""
    place, world = place_above(root, group), dist.get_world_size(group)
    for distance in reversed(distances(world)):
        if place % (2 * distance) == distance:
            dist.recv(flat(tensor), group_src=(root + place - distance) % world, group=group)
        elif place % (2 * distance) == 0 and place + distance < world:
            dist.send(flat(tensor), group_dst=(root + place + distance) % world, group=group)


def tree_all_gather(tensor: torch.Tensor, group: dist.ProcessGroup | None = None) -> None:
    """Give every rank all N chunks of `tensor`, in place, where rank j starts with the right chunk j."""
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    for distance in distances(world):
        if rank % (2 * distance) == distance:
            mine = chunk_range(tensor, world, rank, min(rank + distance, world))
            dist.send(mine, group_dst=rank - distance, group=group)
            break
        if rank + distance < world:
            theirs = chunk_range(tensor, world, rank + distance, min(rank + 2 * distance, world))
            dist.recv(theirs, group_src=rank + distance, group=group)
    tree_broadcast(tensor, 0, group)


def distances(world: int) -> list[int]:
    """1, 2, 4, ...: the powers of two below `world`, one for each round."""
    return [1 << round for round in range((world - 1).bit_length())]


def place_above(root: int, group: dist.ProcessGroup | None = None) -> int:
    """How far above `root` this rank is in `group`, modulo its size. Raises ValueError for a root outside."""
    world = dist.get_world_size(group)
    if not 0 <= root < world:
        raise ValueError(f"root {root} is not in a group of {world}: its ranks are 0 to {world - 1}")
    return (dist.get_rank(group) - root) % world
