"""Every collective as one pattern: say where my tensors are, read what I need from the others, say that I am done.

A collective is a meeting of the group. The n-th meeting begins when all have published for the n-th time, and ends
when all have finished reading; only then may a tensor that others read be changed. Nobody sends anything: each rank
reads, and with N ranks every rank reads from every other, so that no memory is hotter than another.

All-reduce: rank j adds up chunk j of all tensors, piece by piece so that the sum stays in the cache, and then reads
the other sums. That is reduce-scatter and all-gather like the ring, (N-1)/N S bytes each, in 2 waits instead of
2 (N-1).

A meeting with a dead rank cannot end: each of the others gives it up, says so, and stays until nobody reads from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from dtcourse.backends.deaths import Dead, died
from dtcourse.backends.fence import fence
from dtcourse.backends.shared_memory.block import (
    BUFFERS,
    FINISHED,
    GAVE_UP,
    HEAD,
    MAX_BUFFERS,
    PUBLISHED,
    REDUCED,
    Block,
)
from dtcourse.backends.shared_memory.windows import Windows
from dtcourse.errors import RankDied

Reduce = Callable[[torch.Tensor, torch.Tensor], object]  # in place, into the first

PIECE = 1 << 20  # bytes
SMALL = 64 * 1024  # bytes up to which everybody simply reads everything


class Meetings:
    """The collectives of one rank. All tensors are contiguous; lists are in the order of the group's ranks."""

    def __init__(self, block: Block, windows: Windows, dead: Dead, timeout: float) -> None:
        self._block, self._windows, self._dead, self._timeout = block, windows, dead, timeout
        self.rank, self.size = block.rank, block.size
        self._number = 0
        self._others = [(self.rank + i) % self.size for i in range(1, self.size)]
        self._staging = torch.empty(0, dtype=torch.uint8, device="cpu")

    # -- the collectives ----------------------------------------------------------------------------------------

    def barrier(self) -> None:
        with self._meet([]):
            pass

    def broadcast(self, tensor: torch.Tensor, root: int) -> None:
        with self._meet([tensor] if self.rank == root else []):
            if self.rank != root:
                self._read(root, 0, tensor)

    def all_gather(self, outputs: list[torch.Tensor], tensor: torch.Tensor) -> None:
        with self._meet([tensor]):
            outputs[self.rank].copy_(tensor)
            for other in self._others:
                self._read(other, 0, outputs[other])

    def gather(self, outputs: list[torch.Tensor], tensor: torch.Tensor, root: int) -> None:
        with self._meet([tensor]):
            if self.rank == root:
                outputs[root].copy_(tensor)
                for other in self._others:
                    self._read(other, 0, outputs[other])

    def scatter(self, output: torch.Tensor, tensors: list[torch.Tensor], root: int) -> None:
        with self._meet(tensors if self.rank == root else []):
            if self.rank == root:
                output.copy_(tensors[root])
            else:
                self._read(root, self.rank, output)

    def all_to_all(self, outputs: list[torch.Tensor], tensors: list[torch.Tensor]) -> None:
        with self._meet(tensors):
            outputs[self.rank].copy_(tensors[self.rank])
            for other in self._others:
                self._read(other, self.rank, outputs[other])

    def reduce(self, tensor: torch.Tensor, root: int, reduce: Reduce) -> None:
        with self._meet([tensor]):
            if self.rank == root:
                self._add_up(tensor, 0, 0, reduce)

    def reduce_scatter(self, output: torch.Tensor, tensors: list[torch.Tensor], reduce: Reduce) -> None:
        with self._meet(tensors):
            output.copy_(tensors[self.rank])
            self._add_up(output, self.rank, 0, reduce)

    def all_reduce(self, tensor: torch.Tensor, reduce: Reduce) -> None:
        flat = tensor.view(-1)
        if tensor.numel() * tensor.element_size() <= SMALL:
            total = self._sum_of_all(flat, reduce)
            flat.copy_(total)
            return
        chunks = flat.tensor_split(self.size)
        starts = [chunk.storage_offset() - flat.storage_offset() for chunk in chunks]
        mine, my_start = chunks[self.rank], starts[self.rank] * flat.element_size()
        with self._meet([flat]) as addresses:
            self._add_up(mine, 0, my_start, reduce)
            self._windows.update(addresses[0], mine, my_start)
            self._tell(REDUCED)
            for other in self._others:
                self._await(REDUCED, [other])
                self._read(other, 0, chunks[other], starts[other] * flat.element_size(), whole=False)

    def _sum_of_all(self, flat: torch.Tensor, reduce: Reduce) -> torch.Tensor:
        with self._meet([flat]):
            parts = [flat if rank == self.rank else torch.empty_like(flat) for rank in range(self.size)]
            for other in self._others:
                self._read(other, 0, parts[other])
            total = parts[0].clone()
            for part in parts[1:]:  # in the same order on every rank, for the same rounding
                reduce(total, part)
        return total

    def _add_up(self, total: torch.Tensor, buffer: int, offset: int, reduce: Reduce) -> None:
        """Reduce into `total` what the others have at `offset` of their `buffer`."""
        step = max(1, PIECE // total.element_size())
        for start in range(0, total.numel(), step):
            piece = total.view(-1)[start : start + step]
            staging = self._stage(piece)
            for other in self._others:
                self._read(other, buffer, staging, offset + start * total.element_size(), whole=False)
                reduce(piece, staging)

    def _stage(self, like: torch.Tensor) -> torch.Tensor:
        size = like.numel() * like.element_size()
        if self._staging.numel() < size:
            self._staging = torch.empty(max(size, PIECE), dtype=torch.uint8, device="cpu")
        return self._staging[:size].view(like.dtype)

    # -- the meeting --------------------------------------------------------------------------------------------

    @contextmanager
    def _meet(self, tensors: list[torch.Tensor]) -> Iterator[list[int]]:
        if len(tensors) > MAX_BUFFERS:
            raise ValueError(f"a collective takes at most {MAX_BUFFERS} tensors, not {len(tensors)}")
        addresses = [self._windows.open(t, filled=True) if t.numel() else 0 for t in tensors]
        self._publish(addresses, tensors)
        try:
            self._await(PUBLISHED, self._others)
            self._raise_if_given_up()
            yield addresses
            self._tell(FINISHED)
            self._await(FINISHED, self._others)
        except RankDied:
            self._give_up()
            self._close(addresses, tensors)
            raise
        self._close(addresses, tensors)

    def _close(self, addresses: list[int], tensors: list[torch.Tensor]) -> None:
        for address, tensor in zip(addresses, tensors, strict=True):
            if tensor.numel():
                self._windows.close(address, tensor, written=False)

    def _publish(self, addresses: list[int], tensors: list[torch.Tensor]) -> None:
        self._number += 1
        block = self._block
        for i, (address, tensor) in enumerate(zip(addresses, tensors, strict=True)):
            block.set(HEAD + 2 * i, address)
            block.set(HEAD + 2 * i + 1, tensor.numel() * tensor.element_size())
        block.set(BUFFERS, len(tensors))
        self._tell(PUBLISHED)

    def _tell(self, what: int) -> None:
        self._block.set(what, self._number)
        self._block.ring_all()

    def _await(self, what: int, ranks: list[int]) -> None:
        get, number = self._block.get, self._number
        for rank in ranks:
            if get(rank, what) < number:
                self._block.wait(lambda rank=rank: self._reached(rank, what), self._timeout, rank)

    def _reached(self, rank: int, what: int) -> bool:
        anybody_dead = bool(self._dead)  # asked first: what a rank did before it died counts
        if self._block.get(rank, what) >= self._number:
            return True
        if anybody_dead:
            for member, who in self._dead.members().items():
                if self._block.get(member, FINISHED) < self._number:
                    raise died(who, "this collective needs it")
            self._raise_if_given_up()
        return False

    def _read(self, rank: int, buffer: int, into: torch.Tensor, offset: int = 0, whole: bool = True) -> None:
        size = into.numel() * into.element_size()
        there = self._block.get(rank, HEAD + 2 * buffer + 1) if buffer < self._block.get(rank, BUFFERS) else 0
        if offset + size > there or (whole and size != there):
            raise ValueError(f"rank {rank} of the group brought {there} bytes where {offset + size} were expected")
        if size:
            try:
                self._windows.read(rank, self._block.get(rank, HEAD + 2 * buffer), into, offset)
            except ConnectionError as problem:
                raise died(self._dead.confirm(rank, problem), "this collective needs it") from None

    # -- deaths -------------------------------------------------------------------------------------------------

    def _raise_if_given_up(self) -> None:
        """If another rank has given up this meeting: it does not hold still to be read."""
        if self._dead and any(self._block.get(other, GAVE_UP) >= self._number for other in self._others):
            raise died(min(self._dead.members().values()), "this collective needs it")

    def _give_up(self) -> None:
        """Leave the meeting, but not while somebody may be reading from this rank."""
        self._tell(GAVE_UP)
        self._tell(FINISHED)
        fence()  # who publishes later sees that this rank has given up
        for other in self._others:
            if self._block.get(other, PUBLISHED) >= self._number:
                self._block.wait(lambda other=other: self._has_left(other), self._timeout, other)

    def _has_left(self, other: int) -> bool:
        return other in self._dead.members() or self._block.get(other, FINISHED) >= self._number
