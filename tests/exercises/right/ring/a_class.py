"""A class that knows the ring; it prints, too, and warns."""

import sys
import warnings
from dataclasses import dataclass

import torch
import torch.distributed as dist


@dataclass
class Ring:
    group: object

    def __post_init__(self):
        self.rank = dist.get_rank(self.group)
        self.world = dist.get_world_size(self.group)

    def turn(self, outgoing, incoming):
        print(f"rank {self.rank} sends {len(outgoing)} elements", file=sys.stderr)
        works = [
            dist.isend(outgoing, group=self.group, group_dst=(self.rank + 1) % self.world),
            dist.irecv(incoming, group=self.group, group_src=(self.rank + self.world - 1) % self.world),
        ]
        [work.wait() for work in works]

    def chunk(self, tensor, number):
        return tensor.view(-1).tensor_split(self.world)[number % self.world]

    def reduce_scatter(self, tensor):
        for i in range(self.world - 1):
            mine = self.chunk(tensor, self.rank - i - 1)
            incoming = mine.new_empty(mine.shape)
            self.turn(self.chunk(tensor, self.rank - i), incoming)
            torch.add(mine, incoming, out=mine)

    def all_gather(self, tensor):
        for i in range(self.world - 1):
            self.turn(self.chunk(tensor, self.rank - i + 1), self.chunk(tensor, self.rank - i))


def ring_reduce_scatter(tensor, group=None):
    warnings.warn("to be seen, not to be punished", stacklevel=1)
    Ring(group).reduce_scatter(tensor)


def ring_all_gather(tensor, group=None):
    Ring(group).all_gather(tensor)


def ring_all_reduce(tensor, group=None):
    ring = Ring(group)
    ring.reduce_scatter(tensor)
    ring.all_gather(tensor)
