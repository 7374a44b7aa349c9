"""What an algorithm costs: the bytes that each rank sends and receives, and the seconds on a link.

In the formulas N = ranks, S = bytes of the tensor, a = latency, b = seconds a byte, D = log2 N rounded down, U =
rounded up, p = 2^D. Nothing but the network counts: no rank computes, and all begin at once. Bytes are exact, also
where N does not divide the tensor.

    all-reduce                                               the most that a rank sends
    ring                  2 (N-1) (a + S/N b)                    2 (N-1)/N S
    through a root        N a + 2 (N-1) S b                      (N-1) S, the others S
    tree                  (U + D) a + 2 U S b                    U S
    halving and doubling  2 D a + 2 (p-1)/p S b                  2 (p-1)/p S
      N no power of two   2 a + 2 S b more                       S more
    hierarchical          on a Network: see predict.py

    broadcast, all-gather                                    the most that a rank sends
    ring broadcast        2 (N-1) (a + S/N b)                    S
    tree broadcast        D a + U S b                            U S
    ring all-gather       (N-1) (a + S/N b)                      (N-1)/N S
    tree all-gather       (U + D) a + ((N-1)/N + U) S b          U S

    gather to a root      a + (N-1) S b                          S, and the root receives (N-1) S
    parameter server      2 (a + max(W/P, 1) S b)  a round       W/P S a server, S a worker
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dtcourse.network.link import Link
from dtcourse.network.plans import chunk_sizes


class Cost(NamedTuple):
    """`sent` and `received`: bytes, by rank."""

    sent: tuple[int, ...]
    received: tuple[int, ...]
    seconds: float


def ring_all_reduce(world: int, elements: int, link: Link, element_size: int = 4) -> Cost:
    """Of a tensor of `elements` elements of `element_size` bytes, round the ring of all ranks.

    A round takes as long as the longest chunk, which is on its way in each of them. As in `collectives/ring.py`.
    """
    if world == 1:
        return Cost((0,), (0,), 0.0)
    chunks = chunk_sizes(elements, element_size, world)
    sent = [2 * sum(chunks) - chunks[(j + 1) % world] - chunks[(j + 2) % world] for j in range(world)]
    return Cost(tuple(sent), tuple(sent[-1:] + sent[:-1]), 2 * (world - 1) * link.seconds(chunks[0]))


def root_all_reduce(world: int, size: int, link: Link) -> Cost:
    """Of `size` bytes through rank 0, as `collectives/root.py` does it: one rank after the other, in, then out.

    The root waits for each arrival, and so for a latency each time; what it sends need only have left.
    """
    others = world - 1
    both = (others * size, *[size] * others)
    seconds = others * link.seconds(size) + (others * size / link.bandwidth + link.latency if others else 0.0)
    return Cost(both, both, seconds)


def tree_all_reduce(world: int, size: int, link: Link) -> Cost:
    """Of `size` bytes up a binomial tree to rank 0, and down again. As in `collectives/tree.py`.

    On the way up a rank waits for each child in turn, and so for a latency each time. On the way down it goes on as
    soon as its bytes have left: latencies add up along a branch alone, and only a full tree has a branch of U.
    """
    both = tuple(size * (children + (rank > 0)) for rank, children in enumerate(_children(world)))
    up = (world - 1).bit_length() * link.seconds(size) if world > 1 else 0.0
    return Cost(both, both, up + tree_broadcast(world, size, link).seconds)


def tree_broadcast(world: int, size: int, link: Link) -> Cost:
    """Of `size` bytes from rank 0 down a binomial tree."""
    down, up = world.bit_length() - 1, (world - 1).bit_length()
    sent = tuple(size * children for children in _children(world))
    received = (0, *[size] * (world - 1))
    return Cost(sent, received, down * link.latency + up * size / link.bandwidth)


def tree_all_gather(world: int, elements: int, link: Link, element_size: int = 4) -> Cost:
    """Of the `world` chunks of a tensor: up a binomial tree to rank 0, then all of them down again."""
    chunks = chunk_sizes(elements, element_size, world)
    down = tree_broadcast(world, sum(chunks), link)
    up = [0] + [sum(chunks[rank : rank + (rank & -rank)]) for rank in range(1, world)]  # rank & -rank: its lowest bit
    from_children = [sum(up[child] for child in _children_of(rank, world)) for rank in range(world)]
    seconds = (world - 1).bit_length() * link.latency + (sum(chunks) - chunks[0]) / link.bandwidth
    return Cost(_sum(down.sent, up), _sum(down.received, from_children), seconds + down.seconds)


def halving_doubling_all_reduce(world: int, elements: int, link: Link, element_size: int = 4) -> Cost:
    """As in `collectives/halving_doubling.py`: S less a chunk to halve, and then the blocks that double.

    A round takes as long as the longer one of two halves. Where the world is no power of two and p does not divide the
    tensor it may be over sooner, by less than it takes to send an element more in each round.
    """
    p = 1 << world.bit_length() - 1
    aside, size, chunks = world - p, elements * element_size, chunk_sizes(elements, element_size, p)
    both = [size - chunks[q] + sum(_blocks(chunks, q)) + size * (q < aside) for q in range(p)]
    for q in range(aside):
        both.insert(2 * q, size)  # an even rank that steps aside: all that it has, and the sum back
    seconds = 2 * sum(map(link.seconds, _blocks(chunks, 0))) + (2 * link.seconds(size) if aside else 0.0)
    return Cost(tuple(both), tuple(both), seconds)


def ring_broadcast(world: int, elements: int, link: Link, element_size: int = 4) -> Cost:
    """Chunk after chunk from rank 0 along the ring. As in `collectives/ring_broadcast.py`.

    The first chunk, none is longer, goes all the way; the others come after it.
    """
    first, *others = chunk_sizes(elements, element_size, world)
    size, all_but_one = first + sum(others), world - 1
    seconds = all_but_one * link.seconds(first) + sum(map(link.seconds, others))
    return Cost((*[size] * all_but_one, 0), (0, *[size] * all_but_one), seconds)


def ring_all_gather(world: int, elements: int, link: Link, element_size: int = 4) -> Cost:
    """Of the `world` chunks of a tensor, rank j with chunk j+1 to begin with. As in `collectives/ring.py`."""
    chunks = chunk_sizes(elements, element_size, world)
    sent = tuple(sum(chunks) - chunks[(j + 2) % world] for j in range(world)) if world > 1 else (0,)
    return Cost(sent, sent[-1:] + sent[:-1], (world - 1) * link.seconds(chunks[0]))


def gather(world: int, size: int, link: Link) -> Cost:
    """Of `size` bytes from each rank to rank 0, all at once: the root's port takes one after the other."""
    others = world - 1
    seconds = link.seconds(others * size) if others else 0.0
    return Cost((0, *[size] * others), (others * size, *[0] * others), seconds)


def parameter_server(workers: int, shards: Sequence[int], link: Link) -> Cost:
    """One round: each worker pushes a gradient to each server and pulls its shard. `shards`: bytes on each server.

    Ranks: the servers first, then the workers. `seconds` are the least that one round alone can take, those of the
    busiest port each way. Two things change them:
    - Workers that go from server to server wait for a latency each time: with P equal shards each way takes
      a P + max(W/P, 1) S b if each begins at another one, and a P + (W+P-1)/P S b if all queue at server 0 first.
    - Rounds in a row overlap, as ports work both ways at once: the worker that is answered first pushes again while the
      others still wait. With one server a round then takes 2 a + (W+1) S b.
    """
    size = sum(shards)
    both = (*(workers * shard for shard in shards), *[size] * workers)
    return Cost(both, both, 2 * link.seconds(max(both)) if workers else 0.0)


def _blocks(chunks: list[int], chunk: int) -> list[int]:
    """Bytes of the blocks of 1, 2, 4, ..., p/2 chunks that a chunk lies in; a block of n begins at a multiple of n."""
    lengths = [1 << k for k in range(len(chunks).bit_length() - 1)]
    return [sum(chunks[chunk - chunk % length :][:length]) for length in lengths]


def _children_of(rank: int, world: int) -> list[int]:
    """Of a rank in the binomial tree under rank 0: it plus each power of two below its own lowest bit."""
    bits = (1 << k for k in range((world - 1).bit_length()))
    return [rank + bit for bit in bits if (rank == 0 or bit < rank & -rank) and rank + bit < world]


def _children(world: int) -> list[int]:
    """How many each rank has."""
    return [len(_children_of(rank, world)) for rank in range(world)]


def _sum(some: Sequence[int], others: Sequence[int]) -> tuple[int, ...]:
    return tuple(a + b for a, b in zip(some, others, strict=True))
