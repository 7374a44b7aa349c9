"""What a collective sends, as data: a plan is a sequence of rounds, a round a list of (sender, receiver, bytes).

A rank begins a round when its part in the one before is over. Ranks count from 0 within the group. `sizes` are the
bytes of the N chunks of a tensor, one chunk a rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest

Round = list[tuple[int, int, int]]


def chunk_sizes(elements: int, element_size: int, world: int) -> list[int]:
    """Bytes of each of the `world` chunks of a tensor: the first (elements mod world) are one element longer."""
    short, longer = divmod(elements, world)
    return [(short + (rank < longer)) * element_size for rank in range(world)]


def backwards(plan: Iterable[Round]) -> Iterator[Round]:
    """The same messages the other way, the last round first: so a reduce becomes a broadcast."""
    for messages in reversed(list(plan)):
        yield [(receiver, sender, size) for sender, receiver, size in messages]


def side_by_side(groups: Iterable[tuple[Sequence[int], Iterable[Round]]]) -> Iterator[Round]:
    """Plans of groups of ranks that work at the same time: (the ranks of a group, its plan)."""
    members, parts = zip(*groups, strict=True)
    for rounds in zip_longest(*parts, fillvalue=()):
        yield [(of[s], of[r], size) for of, messages in zip(members, rounds, strict=True) for s, r, size in messages]


# -- rings ------------------------------------------------------------------------------------------------------------


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


# -- trees ------------------------------------------------------------------------------------------------------------


def tree_reduce(world: int, size: int, root: int = 0) -> Iterator[Round]:
    """Ranks count from the root: in round k those whose lowest bit is bit k send to the one without that bit."""
    return _up(world, root, lambda rank, bit: size)


def tree_broadcast(world: int, size: int, root: int = 0) -> Iterator[Round]:
    """The way back. The root begins with the rank that is furthest away."""
    return backwards(tree_reduce(world, size, root))


def tree_all_reduce(world: int, size: int) -> Iterator[Round]:
    """A reduce to rank 0, then a broadcast."""
    yield from tree_reduce(world, size)
    yield from tree_broadcast(world, size)


def tree_all_gather(sizes: list[int]) -> Iterator[Round]:
    """Rank j begins with a part of sizes[j] bytes. What a rank has collected goes up; then all of it comes down."""
    yield from _up(len(sizes), 0, lambda rank, bit: sum(sizes[rank : rank + bit]))
    yield from tree_broadcast(len(sizes), sum(sizes))


def _up(world: int, root: int, size: Callable[[int, int], int]) -> Iterator[Round]:
    """Up the binomial tree. A rank that sends along `bit` has heard from all ranks up to rank+bit."""
    for bit in (1 << k for k in range((world - 1).bit_length())):
        senders = range(bit, world, 2 * bit)
        yield [((root + r) % world, (root + r - bit) % world, size(r, bit)) for r in senders]


# -- halving and doubling ---------------------------------------------------------------------------------------------


def halving_doubling_all_reduce(elements: int, element_size: int, world: int) -> Iterator[Round]:
    """Partners halve what they still sum up, p/2 ranks apart, then p/4, ..., 1; the way back doubles it again.

    p is the greatest power of two up to N. Before that N-p even ranks step aside: they send all that they have to the
    odd rank after them, which sends the sum back in the end.
    """
    p = 1 << world.bit_length() - 1
    aside, chunks = world - p, chunk_sizes(elements, element_size, p)
    ranks = [2 * q + 1 if q < aside else q + aside for q in range(p)]  # those that go on, as q = 0, ..., p-1
    down = [[(2 * q, 2 * q + 1, elements * element_size) for q in range(aside)]]
    for distance in (p >> k for k in range(1, p.bit_length())):
        halves = [sum(chunks[start : start + distance]) for start in range(0, p, distance)]
        down.append([(ranks[q], ranks[q ^ distance], halves[(q ^ distance) // distance]) for q in range(p)])
    yield from down
    yield from backwards(down)


# -- nodes ------------------------------------------------------------------------------------------------------------


def hierarchical_all_reduce(elements: int, element_size: int, world: int, ranks_per_node: int) -> Iterator[Round]:
    """Reduce-scatter inside each node, all-reduce of each chunk across the nodes, all-gather inside: all by rings.

    Raises ValueError if the nodes are not all full.
    """
    if world % ranks_per_node:
        raise ValueError(f"{world} ranks do not fill nodes of {ranks_per_node}: their number has to divide the world")
    nodes = [range(first, first + ranks_per_node) for first in range(0, world, ranks_per_node)]
    chunks = chunk_sizes(elements, element_size, ranks_per_node)
    owned = chunks[1:] + chunks[:1]  # rank j of a node holds chunk j+1 after the first phase
    alike = [range(j, world, ranks_per_node) for j in range(ranks_per_node)]
    parts = [chunk_sizes(size // element_size, element_size, len(nodes)) for size in owned]
    yield from side_by_side((node, ring_reduce_scatter(chunks)) for node in nodes)
    yield from side_by_side((ranks, ring_all_reduce(part)) for ranks, part in zip(alike, parts, strict=True))
    yield from side_by_side((node, ring_all_gather(owned)) for node in nodes)


# -- all at once ------------------------------------------------------------------------------------------------------


def root_all_reduce(world: int, size: int) -> Iterator[Round]:
    """One rank after the other to rank 0, which waits for each; then rank 0 to all."""
    yield from ([(j, 0, size)] for j in range(1, world))
    yield from scatter(world, size, 0)


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
