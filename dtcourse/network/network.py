"""`Network`: several ranks on each node, with a fast link inside it and a slow one between the nodes."""

from __future__ import annotations

from dataclasses import dataclass

from dtcourse.network.link import Link


@dataclass(frozen=True)
class Network:
    """Nodes of `ranks_per_node` ranks each, in the order of the ranks; the last node may have fewer.

    inside            the port of each rank for messages to ranks of its own node
    across            the one port of each node for messages to other nodes: all ranks of the node share it

    Raises TypeError or ValueError for what is no such thing.
    """

    inside: Link
    across: Link
    ranks_per_node: int

    def __post_init__(self) -> None:
        for name in ("inside", "across"):
            if not isinstance(link := getattr(self, name), Link):
                raise TypeError(f'{name} is a Link, as in {name}=Link("1 Gbit/s", "50 us"), not {link!r}')
        if type(self.ranks_per_node) is not int or self.ranks_per_node < 1:
            raise ValueError(f"ranks_per_node is a number from 1 on, not {self.ranks_per_node!r}")

    def route(self, sender: int, receiver: int) -> tuple[Link, int, int]:
        """The link that a message takes, its out-port and its in-port. The port of node k is number -1-k."""
        here, there = sender // self.ranks_per_node, receiver // self.ranks_per_node
        return (self.inside, sender, receiver) if here == there else (self.across, -1 - here, -1 - there)
