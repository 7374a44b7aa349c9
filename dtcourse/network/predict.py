"""What an algorithm will cost on a network, and which one is the fastest at which size.

On a `Link` by the formulas of `costs.py`. On a `Network`, where ranks share the ports of their node, a formula would
have to say who waits for whom: there the messages of the algorithm's plan go through the ports, one by one.

    hierarchical, L ranks on each of K nodes; a', b' = latency and seconds a byte between nodes:
        2 (L-1) (a + S/L b) inside, and between the nodes 2 (K-1) (a' + S/K b') or less: where ranks share a port,
        one waits for its latency while another sends
        a rank sends 2 (L-1)/L S inside and 2 (K-1)/K S/L to other nodes
"""

from __future__ import annotations

from collections.abc import Iterable

from dtcourse.network import costs, plans
from dtcourse.network.costs import Cost
from dtcourse.network.link import Link
from dtcourse.network.network import Network
from dtcourse.network.ports import Ports

ALL_REDUCES = ("ring", "root", "tree", "halving_doubling", "hierarchical")
ALGORITHMS = (*ALL_REDUCES, "ring_broadcast", "tree_broadcast", "ring_all_gather", "tree_all_gather")

_LARGEST = 1 << 40  # bytes: beyond that nobody asks which one is faster


def predict(algorithm: str, world: int, size: int, network: Link | Network, element_size: int = 4) -> Cost:
    """Of one of ALGORITHMS, on a tensor of `size` bytes, in all, whose elements have `element_size` bytes.

    Raises ValueError for an unknown algorithm, for no rank, for no whole number of elements, and for "hierarchical"
    where there are no nodes, or where the last one is not full.
    """
    if algorithm not in ALGORITHMS:
        raise ValueError(f"there is no algorithm {algorithm!r} here, but {', '.join(ALGORITHMS)}")
    elements, rest = divmod(size, element_size)
    if rest or size < 0:
        raise ValueError(f"{size} bytes are no whole number of elements of {element_size} bytes")
    if world < 1:
        raise ValueError(f"among {world} ranks nobody sends anything: at least one rank")
    if isinstance(network, Network):
        return played(_plan(algorithm, world, elements, element_size, network.ranks_per_node), world, network)
    if algorithm == "hierarchical":
        raise ValueError("hierarchical needs nodes: give a Network(inside, across, ranks_per_node), not one Link")
    return _formula(algorithm, world, elements, element_size, network)


def fastest(world: int, size: int, network: Link | Network) -> str:
    """Which all-reduce of `size` bytes takes the least time; of equally fast ones the first in ALL_REDUCES."""
    nodes = isinstance(network, Network) and world % network.ranks_per_node == 0
    able = [algorithm for algorithm in ALL_REDUCES if nodes or algorithm != "hierarchical"]
    return min(able, key=lambda algorithm: predict(algorithm, world, size, network).seconds)


def crossing(a: str, b: str, world: int, network: Link | Network) -> int | None:
    """From how many bytes on the other one of two algorithms is the faster one; None if it is always the same."""

    def ahead(words: int) -> float:
        """By how many seconds a is faster."""
        return predict(b, world, 4 * words, network).seconds - predict(a, world, 4 * words, network).seconds

    low, high = 1, _LARGEST // 4  # elements
    if ahead(low) * ahead(high) >= 0:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if ahead(middle) * ahead(low) > 0 else (low, middle)
    return 4 * high


def played(plan: Iterable[plans.Round], world: int, network: Link | Network) -> Cost:
    """What a plan costs when its messages go through the ports of a network."""
    rounds = list(plan)
    ports = Ports(network, [0] * (2 * world), [0] * (2 * world))
    done = ports.play(rounds, tuple(range(world)), 0)
    sent, received = [0] * world, [0] * world
    for sender, receiver, size in (message for messages in rounds for message in messages):
        sent[sender] += size
        received[receiver] += size
    return Cost(tuple(sent), tuple(received), max(done.values()) / 1e9)


def _formula(algorithm: str, world: int, elements: int, element_size: int, link: Link) -> Cost:
    match algorithm:
        case "root":
            return costs.root_all_reduce(world, elements * element_size, link)
        case "tree":
            return costs.tree_all_reduce(world, elements * element_size, link)
        case "tree_broadcast":
            return costs.tree_broadcast(world, elements * element_size, link)
    by_chunks = {
        "ring": costs.ring_all_reduce,
        "halving_doubling": costs.halving_doubling_all_reduce,
        "ring_broadcast": costs.ring_broadcast,
        "ring_all_gather": costs.ring_all_gather,
        "tree_all_gather": costs.tree_all_gather,
    }
    return by_chunks[algorithm](world, elements, link, element_size)


def _plan(algorithm: str, world: int, elements: int, element_size: int, ranks_per_node: int) -> Iterable[plans.Round]:
    size, chunks = elements * element_size, plans.chunk_sizes(elements, element_size, world)
    match algorithm:
        case "ring":
            return plans.ring_all_reduce(chunks)
        case "root":
            return plans.root_all_reduce(world, size)
        case "tree":
            return plans.tree_all_reduce(world, size)
        case "halving_doubling":
            return plans.halving_doubling_all_reduce(elements, element_size, world)
        case "hierarchical":
            return plans.hierarchical_all_reduce(elements, element_size, world, ranks_per_node)
        case "ring_broadcast":
            return plans.ring_broadcast(chunks, 0)
        case "tree_broadcast":
            return plans.tree_broadcast(world, size)
        case "ring_all_gather":
            return plans.ring_all_gather(chunks[1:] + chunks[:1])
    return plans.tree_all_gather(chunks)
