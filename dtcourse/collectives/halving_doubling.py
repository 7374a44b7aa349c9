"""Recursive halving-doubling all-reduce: the bytes of the ring in 2 log2(N) steps instead of 2 (N-1).

For N a power of two the tensor is cut into N chunks. Two phases:

    halving    with distance d = N/2, N/4, ..., 1 rank j exchanges with rank j XOR d. Each sends the half that is the
               other's business, and adds what it receives to its own half; in the end rank j has the sum of chunk j
    doubling   with d = 1, 2, ..., N/2 the same pairs exchange what they have: one chunk, two, four, ... until all

For N = 4, the chunks that each rank sends, and to whom, in each step:

    step            1         2         3         4
    rank 0 sends    2 3 to 2  1 to 1  | 0 to 1    0 1 to 2
    rank 1 sends    2 3 to 3  0 to 0  | 1 to 0    0 1 to 3
    rank 2 sends    0 1 to 0  3 to 3  | 2 to 3    2 3 to 0
    rank 3 sends    0 1 to 1  2 to 2  | 3 to 2    2 3 to 1

Any other N: with p the greatest power of two below N, the first 2 (N-p) ranks form pairs. The even rank of each sends
its tensor to the odd one above it, which adds it; p ranks go on as above, numbered anew without gaps; at last the odd
rank sends the result back. For N = 6, ranks 0 and 2 step aside, and 1, 3, 4, 5 are the four.

Cost, with latency a and b seconds a byte: 2 log2(N) a + 2 (N-1)/N S b, which is the ring's with fewer latencies. For
other N two steps more, and 2 S b: a rank that stepped aside sends S, its partner 2 (p-1)/p S + S.
In bytes, with c[k] those of chunk k, rank j sends S - c[j] in the first phase and, in the second, its blocks of 1, 2,
4, ..., p/2 chunks.

Far apart first, so that rank j's chunk is j. MPICH begins with neighbours, which keeps the large halves within a node;
rank j then has the chunk whose number is j with its bits reversed.

Source: Rabenseifner's algorithm, in Thakur, Rabenseifner and Gropp, "Optimization of collective communication
operations in MPICH" (2005); ranks step aside as in MPICH.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from dtcourse.collectives.chunks import chunk_range, flat


def halving_doubling_all_reduce(tensor: torch.Tensor, group: dist.ProcessGroup | None = None) -> None:
    """Sum `tensor` (any shape, contiguous) over the ranks of `group`, in place, on every rank."""
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    power = 1 << (world.bit_length() - 1)  # p: of so many ranks, `pairs` stand for two
    pairs = world - power
    if rank >= 2 * pairs:
        halve_and_double(tensor, rank - pairs, pairs, power, group)
    elif rank % 2 == 0:
        dist.send(flat(tensor), group_dst=rank + 1, group=group)
        dist.recv(flat(tensor), group_src=rank + 1, group=group)
    else:
        contribution = torch.empty_like(flat(tensor))
        dist.recv(contribution, group_src=rank - 1, group=group)
        flat(tensor).add_(contribution)
        halve_and_double(tensor, rank // 2, pairs, power, group)
        dist.send(flat(tensor), group_dst=rank - 1, group=group)


def halve_and_double(
    tensor: torch.Tensor, number: int, pairs: int, power: int, group: dist.ProcessGroup | None = None
) -> None:
    """The all-reduce of the `power` ranks that take part; this one is `number` of them."""

    def exchange(outgoing: torch.Tensor, incoming: torch.Tensor, partner: int) -> None:
        partner = 2 * partner + 1 if partner < pairs else partner + pairs  # its rank in the group
        for work in dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, outgoing, group=group, group_peer=partner),
                dist.P2POp(dist.irecv, incoming, group=group, group_peer=partner),
            ]
        ):
            work.wait()

    def block(of: int, distance: int) -> torch.Tensor:
        """The `distance` chunks, beginning at a multiple of it, of which chunk `of` is one."""
        first = of - of % distance
        return chunk_range(tensor, power, first, first + distance)

    distances = [1 << bit for bit in range(power.bit_length() - 1)]  # 1, 2, ..., power/2
    for distance in reversed(distances):
        partner = number ^ distance
        mine = block(number, distance)
        incoming = torch.empty_like(mine)
        exchange(block(partner, distance), incoming, partner)
        mine += incoming
    for distance in distances:
        partner = number ^ distance
        exchange(block(number, distance), block(partner, distance), partner)
