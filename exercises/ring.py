"""Exercise: ring all-reduce.

N ranks hold one tensor each, all of the same shape. In the end every rank holds the sum, and no rank has sent more
than about twice its tensor, however many ranks there are. The trick: cut the tensor into N chunks, pass one chunk to
the right neighbour in each step, and take one from the left.

Three functions, in this order. Each works in place, so it changes the tensor it is given, and returns None.

    rank, world         dist.get_rank(group), dist.get_world_size(group): j and N below
    right, left         (rank + 1) % world, (rank - 1) % world
    chunks              tensor.view(-1).tensor_split(world): N views, so writing into one changes the tensor. If N does
                        not divide the number of elements, the first chunks are one element longer; with fewer
                        elements than ranks the last ones are empty.
    sending             dist.isend(x, group=group, group_dst=right) starts to send and returns a handle at once
    receiving           dist.irecv(y, group=group, group_src=left) does the same; y is filled after handle.wait()

dist.send returns only when the other side receives. If all ranks send first, they wait for each other for ever.

All chunk numbers are modulo N. The formulas count the steps from i = 0. Check and player count them from 1: their
step 1 is i = 0.

Try it in a notebook with check("ring"), or in a terminal with: dtcourse check ring
"""

from __future__ import annotations

import torch
import torch.distributed as dist


def ring_reduce_scatter(tensor: torch.Tensor, group: dist.ProcessGroup | None = None) -> None:
    """The first half: afterwards rank j holds the complete sum of chunk j+1, in place.

    `tensor` is contiguous, of any shape. There are N-1 steps. In step i = 0, 1, ..., N-2 rank j

        sends chunk j-i to its right neighbour, and at the same time
        receives from its left neighbour what belongs to chunk j-i-1, and adds it to its own chunk j-i-1.

    So what arrives in one step goes out, one rank's numbers richer, in the next. For N = 4:

        i                    0  1  2
        rank 0 sends chunk   0  3  2        and ends with the sum of chunk 1
        rank 1 sends chunk   1  0  3                                     2
        rank 2 sends chunk   2  1  0                                     3
        rank 3 sends chunk   3  2  1                                     0

    Hints: receive into a tensor of its own (torch.empty_like of the chunk it belongs to) before you add. With one
    rank there is nothing to do. The other chunks may hold anything afterwards: partial sums.
    """
    raise NotImplementedError("not written yet: ring_reduce_scatter")


def ring_all_gather(tensor: torch.Tensor, group: dist.ProcessGroup | None = None) -> None:
    """The second half: rank j starts with the right chunk j+1; afterwards every rank has all N chunks, in place.

    `tensor` is contiguous, of any shape. There are N-1 steps. In each one rank j sends a chunk that is complete to its
    right neighbour, receives a complete one from its left neighbour, and overwrites its own chunk with it.

    Which chunk in which step? Find it yourself: in step 0 rank j sends the only chunk that it has, j+1. Which one does
    its left neighbour send to it then? And what arrives in one step goes out in the next.

    Hint: you may receive into the chunk itself. (A well-known article gives another formula here. Do not believe
    it before you have run it.)
    """
    raise NotImplementedError("not written yet: ring_all_gather")


def ring_all_reduce(tensor: torch.Tensor, group: dist.ProcessGroup | None = None) -> None:
    """The sum over all ranks, in place, on every rank: the first half, then the second."""
    raise NotImplementedError("not written yet: ring_all_reduce")
