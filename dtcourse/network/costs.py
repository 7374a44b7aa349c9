"""What an algorithm costs: the bytes that each rank sends and receives, and the seconds on a link.

In the formulas N = ranks, S = bytes of the tensor, a = latency, b = seconds a byte. Nothing but the network counts: no
rank computes, and all begin at once. Bytes are exact, also where N does not divide the tensor.

    ring all-reduce            2 (N-1) (a + S/N b)                 every rank sends 2 (N-1)/N S
    all-reduce through a root  N a + 2 (N-1) S b                   the root sends (N-1) S, the others S
    gather to a root           a + (N-1) S b                       the root receives (N-1) S
    parameter server, a round  2 (a + max(W/P, 1) S b)             a server sends W/P S, a worker S
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
