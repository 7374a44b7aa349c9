"""Exercise: beyond one ring. Trees, recursive halving-doubling, and what each costs.

A ring takes 2 (N-1) steps, and each waits for a latency: with many ranks and few bytes that is nearly all it does. Here
the steps grow with the logarithm of N: in each, twice as many ranks are done as before.

    tree_broadcast                 one rank's tensor to everybody
    tree_reduce                    the sum of everybody's tensors to one rank; the same tree, backwards
    halving, doubling              two halves of an all-reduce that has the bytes of the ring
    halving_doubling_all_reduce    both, for any number of ranks
    seconds, fastest               what an all-reduce takes on a given link, and which is the fastest

All but the last two work in place, so they change the tensor they are given, and return None. It is contiguous, of any
shape.

    rank, world         dist.get_rank(group), dist.get_world_size(group): j and N below
    elements            tensor.view(-1): in one row, as a view
    sending             dist.send(x, group=group, group_dst=partner) returns when the partner has taken it
    receiving           dist.recv(y, group=group, group_src=partner) returns when y is filled
    exchanging          if both of a pair sent first, both would wait for ever. dist.isend and dist.irecv return a
                        handle at once; call wait() on both. Or give both to dist.batch_isend_irecv, as NCCL wants it

Ranks and roots count within `group`. Check and player count the steps of messages from 1: a message that waits for
nothing is in step 1, and one that needs what came in step 1 is in step 2.

Try it in a notebook with check("collectives"), or in a terminal with: dtcourse check collectives
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist


def tree_broadcast(tensor: torch.Tensor, root: int, group: dist.ProcessGroup | None = None) -> None:
    """Afterwards every rank has the tensor of rank `root`.

    Count from the root: the place of rank j is j - root, modulo N. So the root has place 0. The distances are the
    powers of two below N, here from the greatest to the smallest: ..., 4, 2, 1. At distance d

        a place that is a multiple of 2d      sends the tensor to place + d, if there is such a place (below N)
        a place that is an odd multiple of d  receives it from place - d

    and all others do nothing. For N = 6 and root 0, to which rank each rank sends:

        distance          4  2  1
        rank 0 sends to   4  2  1
        rank 2 sends to   -  -  3
        rank 4 sends to   -  -  5       nothing at distance 2: there is no place 6

    Hint: write it for root 0 first. Then the ranks you talk to are places, moved by root, modulo N.
    """
    # BEGIN SOLUTION
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    place = (rank - root) % world
    for distance in reversed(distances(world)):
        if place % (2 * distance) == distance:
            dist.recv(tensor, group_src=(root + place - distance) % world, group=group)
        elif place % (2 * distance) == 0 and place + distance < world:
            dist.send(tensor, group_dst=(root + place + distance) % world, group=group)
    # END SOLUTION


def tree_reduce(tensor: torch.Tensor, root: int, group: dist.ProcessGroup | None = None) -> None:
    """Afterwards rank `root` has the sum of all ranks' tensors. The others may hold anything: partial sums.

    The broadcast backwards: the distances are 1, 2, 4, ..., and who received from a place sends to it now. Who receives
    adds it to what it has; who has sent is done. For N = 6 and root 0:

        distance          1  2  4
        rank 1 sends to   0
        rank 2 sends to   -  0
        rank 3 sends to   2
        rank 4 sends to   -  -  0
        rank 5 sends to   4

    Hint: receive into a tensor of its own (torch.empty_like) before you add.
    """
    # BEGIN SOLUTION
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    place = (rank - root) % world
    arriving = torch.empty_like(tensor)
    for distance in distances(world):
        if place % (2 * distance) == distance:
            dist.send(tensor, group_dst=(root + place - distance) % world, group=group)
            return
        if place + distance < world:
            dist.recv(arriving, group_src=(root + place + distance) % world, group=group)
            tensor += arriving
    # END SOLUTION


def halving(tensor: torch.Tensor, ranks: Sequence[int], group: dist.ProcessGroup | None = None) -> None:
    """Afterwards the rank with number j has the sum of chunk j over `ranks`. Its other chunks may hold anything.

    `ranks` are those that take part, p of them, and p is a power of two. Rank ranks[j] has number j, and the tensor is
    cut into p chunks, as tensor_split(p) cuts it. Call block(k, d) the d chunks, from a multiple of d on, of which
    chunk k is one: block(3, 2) are chunks 2 and 3.

    The distances d are p/2, ..., 2, 1. At each, number j exchanges with the partner that has number j XOR d (in Python
    j ^ d): it sends block(partner, d), which from now on is its partner's business alone, receives what belongs to
    block(j, d), and adds that to its own. For ranks [0, 1, 2, 3], the chunks that each sends, and to whom:

        d               2         1
        rank 0 sends    2 3 to 2  1 to 1       and ends with the sum of chunk 0
        rank 1 sends    2 3 to 3  0 to 0                                      1
        rank 2 sends    0 1 to 0  3 to 3                                      2
        rank 3 sends    0 1 to 1  2 to 2                                      3

    Hints: chunks are neighbours, so a block is a slice of the elements. If p does not divide their number, the first
    (elements mod p) chunks are one element longer, and so blocks differ, too: write a function that finds a block, and
    use it in both halves. With one rank there is nothing to do.
    """
    # BEGIN SOLUTION
    me = ranks.index(dist.get_rank(group))
    for d in reversed(distances(len(ranks))):
        partner = me ^ d
        mine = block(tensor, len(ranks), me, d)
        arriving = torch.empty_like(mine)
        exchange(block(tensor, len(ranks), partner, d), arriving, ranks[partner], group)
        mine += arriving
    # END SOLUTION


def doubling(tensor: torch.Tensor, ranks: Sequence[int], group: dist.ProcessGroup | None = None) -> None:
    """The rank with number j starts with the right chunk j; afterwards each of `ranks` has all p chunks.

    The halving backwards: the distances d are 1, 2, ..., p/2. At each one number j sends block(j, d), of which every
    chunk is right by then, to number j XOR d, and receives block(j XOR d, d) in its place. For ranks [0, 1, 2, 3]:

        d               1         2
        rank 0 sends    0 to 1    0 1 to 2
        rank 1 sends    1 to 0    0 1 to 3
        rank 2 sends    2 to 3    2 3 to 0
        rank 3 sends    3 to 2    2 3 to 1

    Hint: you may receive into the block itself.
    """
    # BEGIN SOLUTION
    me = ranks.index(dist.get_rank(group))
    for d in distances(len(ranks)):
        partner = me ^ d
        mine, theirs = (block(tensor, len(ranks), number, d) for number in (me, partner))
        exchange(mine, theirs, ranks[partner], group)
    # END SOLUTION


def halving_doubling_all_reduce(tensor: torch.Tensor, group: dist.ProcessGroup | None = None) -> None:
    """Afterwards every rank of the group has the sum of all their tensors.

    If N is a power of two, all ranks do the halving, then the doubling. (There are points for this alone.)

    Any other N: let p be the greatest power of two below N, and r = N - p. The first 2r ranks form pairs: 0 and 1, 2
    and 3, ... First the even rank of each pair sends its whole tensor to the odd one, which adds it to its own. All but
    the even ranks of the pairs, p ranks, do the halving and the doubling, in the order of their ranks. Last the odd
    rank of each pair sends the whole sum to the even one. For N = 6, ranks 0 and 2 send and then wait, and `ranks` is
    [1, 3, 4, 5].
    """
    # BEGIN SOLUTION
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    in_pairs = 2 * (world - 2 ** (world.bit_length() - 1))
    waiting = range(0, in_pairs, 2)
    if rank in waiting:
        dist.send(tensor, group_dst=rank + 1, group=group)
        dist.recv(tensor, group_src=rank + 1, group=group)
        return
    if rank < in_pairs:
        arriving = torch.empty_like(tensor)
        dist.recv(arriving, group_src=rank - 1, group=group)
        tensor += arriving
    ranks = [r for r in range(world) if r not in waiting]
    halving(tensor, ranks, group)
    doubling(tensor, ranks, group)
    if rank < in_pairs:
        dist.send(tensor, group_dst=rank - 1, group=group)
    # END SOLUTION


def seconds(algorithm: str, world: int, size: int, latency: float, bandwidth: float) -> float:
    """How long an all-reduce of `size` bytes takes among `world` ranks; 0 for one rank.

        algorithm     "ring", "tree" (reduce, then broadcast), or "halving_doubling"
        latency       seconds
        bandwidth     bytes a second, in each direction at once

    Count one step after the other, each in full: the latency and, for the largest message in it, its bytes / bandwidth.
    Adding up takes no time. Chunks have size / N bytes (or size / p), also where that is no whole number.

    An example: the ring among 4 ranks takes 6 steps, each moving size / 4. For 1,000,000 bytes, 0.001 s and 1e8 bytes a
    second those are 6 * (0.001 + 0.0025) = 0.021 s.

    Hint: the blocks of halving-doubling are of different sizes; add them up. And do not forget worlds that are no power
    of two: how many distances has a tree then, and what do the pairs of halving-doubling add?
    """
    # BEGIN SOLUTION
    if algorithm == "ring":
        return 2 * (world - 1) * (latency + size / world / bandwidth)
    if algorithm == "tree":
        return 2 * len(distances(world)) * (latency + size / bandwidth)
    power = 2 ** (world.bit_length() - 1)
    total = sum(2 * (latency + d * size / power / bandwidth) for d in distances(power))
    return total if power == world else total + 2 * (latency + size / bandwidth)
    # END SOLUTION


def fastest(world: int, size: int, latency: float, bandwidth: float) -> str:
    """The name of the fastest of the three; any of them where several take equally long.

    (Counted in full steps one of them never is. Which one, and why do libraries have it all the same? Lesson 05 counts
    its latencies one by one, for six ranks, and then it is.)
    """
    # BEGIN SOLUTION
    algorithms = ("ring", "tree", "halving_doubling")
    return min(algorithms, key=lambda algorithm: seconds(algorithm, world, size, latency, bandwidth))
    # END SOLUTION


# BEGIN SOLUTION
def distances(world: int) -> list[int]:
    """1, 2, 4, ..., the powers of two below `world`."""
    return [2**i for i in range((world - 1).bit_length())]


def block(tensor: torch.Tensor, parts: int, chunk: int, d: int) -> torch.Tensor:
    """The d chunks, of `parts`, that `chunk` is one of: a view."""
    elements = tensor.view(-1)
    short, longer = divmod(len(elements), parts)
    first = chunk - chunk % d
    begin, end = (c * short + min(c, longer) for c in (first, first + d))
    return elements[begin:end]


def exchange(outgoing: torch.Tensor, incoming: torch.Tensor, partner: int, group: dist.ProcessGroup | None) -> None:
    """Both are over when this returns."""
    sending = dist.P2POp(dist.isend, outgoing, group=group, group_peer=partner)
    receiving = dist.P2POp(dist.irecv, incoming, group=group, group_peer=partner)
    for work in dist.batch_isend_irecv([sending, receiving]):
        work.wait()


# END SOLUTION
