"""Hierarchical all-reduce: a ring inside each node, where links are fast, and few bytes between nodes.

With K nodes of L ranks each. Ranks i, L+i, 2L+i, ... have the same place i in their nodes.

    1   in each node    ring reduce-scatter: place i has the node's sum of chunk i+1 (of L chunks, modulo L)
    2   across nodes    the ranks of place i all-reduce that chunk by a ring, so each has the sum over all ranks
    3   in each node    ring all-gather: every rank has all chunks

For L = 2 and K = 2, the quarters of the tensor that each rank sends, and to whom:

    step            1         2         3       4
    rank 0 sends    0 1 to 1  | 2 to 2  3 to 2  | 2 3 to 1
    rank 1 sends    2 3 to 0  | 0 to 3  1 to 3  | 0 1 to 0
    rank 2 sends    0 1 to 3  | 3 to 0  2 to 0  | 2 3 to 3
    rank 3 sends    2 3 to 2  | 1 to 1  0 to 1  | 0 1 to 2

Cost: a rank sends 2 (L-1)/L S inside its node and 2 (K-1)/K S/L across. So a node sends 2 (K-1)/K S in all, hardly
less than with one ring round all N ranks, 2 (N-1)/N S; but only 2 (K-1) steps wait for the latency between nodes, and
not 2 (N-1), and where each rank has a port of its own out of the node, each carries 1/L of it.
In bytes, place i of node k sends 2 S - c[i+1] - c[i+2] inside, with c the bytes of the L chunks, and
2 c[i+1] - d[k+1] - d[k+2] across, with d the bytes of the K chunks of chunk i+1 (all modulo L or K).

Source: the "2D-torus all-reduce" of Mikami et al., "Massively distributed SGD: ImageNet/ResNet-50 training in a
flash" (2018); Horovod's HOROVOD_HIERARCHICAL_ALLREDUCE.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from dtcourse.collectives.chunks import chunks_of
from dtcourse.collectives.ring import ring_all_gather, ring_all_reduce, ring_reduce_scatter


class HierarchicalAllReduce:
    """An all-reduce for nodes of `ranks_per_node` ranks. Make it once, on all ranks of `group`, and call it often:

        all_reduce = HierarchicalAllReduce(ranks_per_node=2)
        all_reduce(tensor)

    Those ranks have to be in equally many groups by then: torch names the new ones after that number, and where it
    differs they wait for each other for ever. Raises ValueError if the nodes are not all of this size.
    """

    def __init__(self, ranks_per_node: int, group: dist.ProcessGroup | None = None) -> None:
        self.group = group or dist.group.WORLD
        ranks = dist.get_process_group_ranks(self.group)
        if ranks_per_node < 1 or len(ranks) % ranks_per_node:
            raise ValueError(f"{len(ranks)} ranks are no whole number of nodes of {ranks_per_node} ranks each")
        node, self.place = divmod(dist.get_rank(self.group), ranks_per_node)
        inside = ranks[node * ranks_per_node : (node + 1) * ranks_per_node]
        across = ranks[self.place :: ranks_per_node]
        self.inside = dist.new_group(inside, use_local_synchronization=True)
        self.across = dist.new_group(across, use_local_synchronization=True)

    def __call__(self, tensor: torch.Tensor, group: dist.ProcessGroup | None = None) -> None:
        """Sum `tensor` (any shape, contiguous) over the ranks of the group that this was made for, in place."""
        if group is not None and dist.get_process_group_ranks(group) != dist.get_process_group_ranks(self.group):
            raise ValueError("this all-reduce was made for the nodes of another group: make one for this group")
        ranks_per_node = dist.get_world_size(self.inside)
        ring_reduce_scatter(tensor, self.inside)
        ring_all_reduce(chunks_of(tensor, ranks_per_node)[(self.place + 1) % ranks_per_node], self.across)
        ring_all_gather(tensor, self.inside)
