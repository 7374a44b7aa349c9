"""The ports of all ranks: who sends when, first come first served.

Each rank has an out-port and an in-port, which work at the same time (full duplex); on a `Network` each node has two
more, which its ranks share. A message occupies an out-port on the sender's side and an in-port on the receiver's
together, for bytes / bandwidth, and arrives a latency later:

    out-port of the sender     |=== message ===|
    in-port of the receiver    |=== message ===|
                             start           left -- latency --> arrived

Times are integers, in nanoseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableSequence
from typing import NamedTuple

from dtcourse.network.link import Link
from dtcourse.network.network import Network
from dtcourse.network.plans import Round

_FOR_EVER = 1 << 61  # ns, 73 years: sums of two still fit into the 8 bytes of a port


class Passage(NamedTuple):
    """One message under way."""

    left: int  # its last byte has left the sender
    arrived: int  # and has reached the receiver


class Ports:
    """`out_free`, `in_free`: since when, or from when on, each port is free; changed in place.

    The first are those of the ranks. Those of the nodes, if there are any, count from the end.
    """

    def __init__(self, network: Link | Network, out_free: MutableSequence[int], in_free: MutableSequence[int]) -> None:
        self.network, self.out_free, self.in_free = network, out_free, in_free

    def carry(self, sender: int, receiver: int, size: int, ready: int) -> Passage:
        """Let a message of `size` bytes through as soon as both ports are free, but not before `ready`."""
        link, out, into = self.network.route(sender, receiver)
        left = ready
        if size:
            start = max(ready, self.out_free[out], self.in_free[into])
            left = min(start + _nanoseconds(size / link.bandwidth), _FOR_EVER)
            self.out_free[out] = self.in_free[into] = left
        return Passage(left, left + _nanoseconds(link.latency))

    def latency(self, sender: int, receiver: int) -> int:
        """From the moment in which a message has left until it has arrived."""
        return _nanoseconds(self.network.route(sender, receiver)[0].latency)

    def play(self, plan: Iterable[Round], ranks: tuple[int, ...], ready: int) -> dict[int, int]:
        """Let the messages of a collective through, round after round; when each of the `ranks` is done.

        The plan counts within `ranks`. A rank begins a round when its part in the rounds before is over: what it sends
        has left, and what it receives has arrived. Ports take the messages of a round in the order of the plan.
        """
        done = dict.fromkeys(ranks, ready)
        for messages in plan:
            begun = dict(done)
            for sender, receiver, size in messages:
                s, r = ranks[sender], ranks[receiver]
                passage = self.carry(s, r, size, max(begun[s], begun[r]))
                done[s] = max(done[s], passage.left)
                done[r] = max(done[r], passage.arrived)
        return done


def _nanoseconds(seconds: float) -> int:
    return round(min(seconds * 1e9, _FOR_EVER))
