"""Helper of ring.py."""

from collections import deque

import torch
import torch.distributed as dist


class Neighbourhood:
    def __init__(self, group):
        self.group, self.rank, self.world = group, dist.get_rank(group), dist.get_world_size(group)

    def turned(self, tensor, first):
        """The chunks, downwards from `first`."""
        chunks = deque(reversed(tensor.view(-1).tensor_split(self.world)))
        chunks.rotate(first - self.world + 1)
        return chunks

    def give_and_take(self, outgoing, incoming):
        taking = dist.irecv(incoming, group=self.group, group_src=(self.rank - 1) % self.world)
        giving = dist.isend(outgoing.contiguous(), group=self.group, group_dst=(self.rank + 1) % self.world)
        for work in (giving, taking):
            work.wait()

    def add_up(self, tensor):
        chunks = self.turned(tensor, self.rank)
        for _ in range(self.world - 1):
            outgoing, own = chunks[0], chunks[1]
            incoming = torch.empty_like(own)
            self.give_and_take(outgoing, incoming)
            own += incoming
            chunks.rotate(-1)

    def hand_round(self, tensor):
        chunks = self.turned(tensor, self.rank + 1)
        for _ in range(self.world - 1):
            self.give_and_take(chunks[0], chunks[1])
            chunks.rotate(-1)
