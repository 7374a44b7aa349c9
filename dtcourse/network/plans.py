"""What a collective sends, as data: a plan is a sequence of rounds, a round a list of (sender, receiver, bytes).

A rank begins a round when its part in the one before is over. Ranks count from 0 within the group. `sizes` are the
bytes of the N chunks of a tensor, one chunk a rank; everything but gather, scatter and all-to-all goes round the ring.
"""

from __future__ import annotations

from collections.abc import Iterator

Round = list[tuple[int, int, int]]


def chunk_sizes(elements: int, element_size: int, world: int) -> list[int]:
    """Bytes of each of the `world` chunks of a tensor: the first (elements mod world) are one element longer."""
    short, longer = divmod(elements, world)
    return [(short + (rank < longer)) * element_size for rank in range(world)]


def ring_all_reduce(sizes: list[int]) -> Iterator[Round]:
    """Reduce-scatter, then all-gather: 2 (N-1) rounds."""
    yield from ring_reduce_scatter(sizes)
    yield from ring_all_gather(sizes[1:] + sizes[:1])  # rank j now holds chunk j+1


def ring_reduce_scatter(sizes: list[int]) -> Iterator[Round]:
    """In round i rank j sends chunk j-i."""
    world = len(sizes)
    for i in range(world - 1):
        yield [(j, (j + 1) % world, sizes[(j - i) % world]) for j in range(world)]


def ring_all_gather(sizes: list[int]) -> Iterator[Round]:
    """Rank j begins with a part of sizes[j] bytes. In round i it sends part j-i."""
    yield from ring_reduce_scatter(sizes)  # the same way round; what arrives is kept instead of added


def ring_broadcast(sizes: list[int], root: int) -> Iterator[Round]:
    """Chunk after chunk from the root along the ring: 2 (N-1) rounds. Rank root+h sends chunk k in round k+h."""
    world = len(sizes)
    for i in range(2 * (world - 1)):
        hops = [h for h in range(world - 1) if 0 <= i - h < world]
        yield [((root + h) % world, (root + h + 1) % world, sizes[i - h]) for h in hops]


def ring_reduce(sizes: list[int], root: int) -> Iterator[Round]:
    """A broadcast the other way in time: partial sums go along the ring and end at the root."""
    yield from ring_broadcast(sizes, (root + 1) % len(sizes))


def gather(world: int, size: int, root: int) -> Iterator[Round]:
    """All send `size` bytes to the root at once, whose in-port takes one after the other."""
    yield [(j, root, size) for j in range(world) if j != root]


def scatter(world: int, size: int, root: int) -> Iterator[Round]:
    """The root sends `size` bytes to each of the others."""
    yield [(root, j, size) for j in range(world) if j != root]


def all_to_all(sizes: list[int]) -> Iterator[Round]:
    """Rank j sends sizes[j] bytes to each of the others; in round i to rank j+i."""
    world = len(sizes)
    for i in range(1, world):
        yield [(j, (j + i) % world, sizes[j]) for j in range(world)]
