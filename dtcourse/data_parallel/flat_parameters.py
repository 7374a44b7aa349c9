"""Parameters end to end in one row, of which each rank owns a chunk: what all stages of ZeRO stand on.

    weight w (2 x 3) and bias b (2), 3 ranks:   row      w0 w1 w2 | w3 w4 w5 | b0 b1
                                                chunk       0     |    1     |   2
                                                owner    rank 2   | rank 0   | rank 1

Rank j owns chunk (j+1) mod N, the one that a ring's reduce-scatter completes on it. Chunks are cut with no regard to
where a parameter ends, and are at most one element longer than another: nothing is padded.

Source: Rajbhandari et al., "ZeRO" (2020), section 5; the row as in Zhao et al., "PyTorch FSDP" (2023), section 3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
from torch import nn

from dtcourse.events import mark, region

Exchange = Callable[[torch.Tensor, dist.ProcessGroup | None], None]  # as ring_reduce_scatter and ring_all_gather


class FlatParameters:
    """`parameters` by name, all of one dtype and device, which are views of one row from now on.

    row       (elements,)
    own       the slice of the row that this rank owns
    shard     (own elements,): the values of that slice
    pieces    name -> this rank's part of the parameter, flat, perhaps empty; views of the shard, for the optimizer
    reduced   (own elements,): the sums of all ranks' gradients; None until they have been exchanged

    Raises ValueError if a parameter shares its memory with another tensor: it could not move into the row.
    """

    def __init__(self, name: str, parameters: Mapping[str, nn.Parameter], group: dist.ProcessGroup | None) -> None:
        self.name, self.parameters, self.group = name, dict(parameters), group
        for each, parameter in self.parameters.items():
            if parameter.untyped_storage().nbytes() != parameter.numel() * parameter.element_size():
                raise ValueError(f"{each} shares its memory with other tensors: is the module sharded already?")
        sizes = [parameter.numel() for parameter in self.parameters.values()]
        self.row = torch.cat([p.detach().reshape(-1) for p in self.parameters.values()])
        ends = torch.tensor(sizes).cumsum(0).tolist()
        self._places = {name: slice(end - size, end) for name, size, end in zip(parameters, sizes, ends, strict=True)}
        self._shapes = {name: parameter.shape for name, parameter in self.parameters.items()}
        self.own = _chunk(sum(sizes), dist.get_rank(group), dist.get_world_size(group))
        self._absent = torch.full((), torch.nan, dtype=self.row.dtype, device=self.row.device)
        self._refuse_different_values()
        self.attach()
        self.keep(self.row[self.own])
        self.gradient: torch.Tensor | None = None  # (elements,): this rank's own, as they come
        self.reduced: torch.Tensor | None = None
        self.missing = set(self.parameters)  # whose gradients have yet to come
        self.used: set[str] = set()  # that have one, from samples

    @property
    def trained(self) -> bool:
        """Or frozen: all the parameters of a row are one or the other."""
        return next(iter(self.parameters.values())).requires_grad

    def attach(self) -> None:
        """Let the parameters be views of the row."""
        for name, parameter in self.parameters.items():
            parameter.data = self.row[self._places[name]].view(self._shapes[name])

    def keep(self, shard: torch.Tensor) -> None:
        """Let `shard` hold the values that this rank owns, and the pieces be views of it."""
        self.shard = shard
        self.pieces = {name: nn.Parameter(shard[self.part(name)], self.trained) for name in self.parameters}

    def part(self, name: str) -> slice:
        """Where in the shard this rank's piece of a parameter lies."""
        place, length = self._places[name], self.own.stop - self.own.start
        return slice(*(min(max(end - self.own.start, 0), length) for end in (place.start, place.stop)))

    # -- gradients ----------------------------------------------------------------------------------------------

    def collect(self, name: str, share: float) -> None:
        """Move the gradient of a parameter, times this rank's share, to its place in the row of gradients."""
        if self.reduced is not None:
            raise RuntimeError(
                f"a second gradient of {name} in one step(): its first one has been exchanged. To accumulate, call "
                "the earlier backwards before the block"
            )
        parameter = self.parameters[name]
        if parameter.grad.layout is not torch.strided:
            raise TypeError(f"{name} has a gradient of layout {parameter.grad.layout}: sparse=False makes it dense")
        if self.gradient is None:
            self.gradient = torch.zeros(self._elements, dtype=parameter.dtype, device=parameter.device)
        if share:  # and not times 0: of infinity that is no number
            self.gradient[self._places[name]].add_(parameter.grad.reshape(-1), alpha=share)
            self.used.add(name)
        parameter.grad = None
        self.missing.discard(name)

    def reduce(self, reduce_scatter: Exchange) -> None:
        """Sum the gradients over the ranks; keep those of the own chunk and free the rest."""
        if self.gradient is None:  # this rank has no samples, or does not use these parameters: others do
            self.gradient = torch.zeros(self._elements, dtype=self.shard.dtype, device=self.shard.device)
        with region("reduce-scatter", unit=self.name):
            reduce_scatter(self.gradient, self.group)
        self.reduced, self.gradient = self.gradient[self.own].clone(), None

    def forget(self) -> None:
        """Begin a new step."""
        self.gradient = self.reduced = None
        self.missing, self.used = set(self.parameters), set()

    # -- the row comes and goes, in stage 3 ---------------------------------------------------------------------

    @property
    def whole(self) -> bool:
        """Whether the row is there: its memory, and in it the values of all ranks."""
        return self.row.untyped_storage().nbytes() > 0

    def gather(self, all_gather: Exchange) -> None:
        """Get the chunks of the other ranks, and let the parameters have their values."""
        with region("gather", unit=self.name):
            self.row.untyped_storage().resize_(self._elements * self.row.element_size())
            self.row[self.own] = self.shard
            all_gather(self.row, self.group)
        self.attach()

    def free(self) -> None:
        """Give the memory of the row back. Until the next gather the parameters are NaN, so that no misuse goes unseen.

        The storage object stays, and so what autograd has saved of the row is valid again after the next gather.
        """
        self.row.untyped_storage().resize_(0)
        for name, parameter in self.parameters.items():
            parameter.data = self._absent.expand(self._shapes[name])
        mark("free", unit=self.name)

    # -- the whole ----------------------------------------------------------------------------------------------

    def joined(self, pieces: Mapping[str, torch.Tensor], all_gather: Exchange) -> dict[str, torch.Tensor]:
        """What belongs to each parameter, in its shape, from what all ranks have for their pieces: (elements,) each."""
        row = torch.zeros(self._elements, dtype=self.shard.dtype, device=self.shard.device)
        for name, piece in pieces.items():
            row[self.own][self.part(name)] = piece.detach()
        with region("control"):
            all_gather(row, self.group)
        return {name: row[self._places[name]].view(self._shapes[name]).clone() for name in pieces}

    def piece_of(self, name: str, whole: torch.Tensor) -> torch.Tensor:
        """This rank's part of a tensor that has the shape of the parameter `name`."""
        begin, part = self._places[name].start, self.part(name)
        first = self.own.start + part.start - begin
        return whole.reshape(-1)[first : first + part.stop - part.start]

    @property
    def _elements(self) -> int:
        return self.row.numel()

    def _refuse_different_values(self) -> None:
        with region("control"):
            first = self.row.clone()
            dist.broadcast(first, group=self.group, group_src=0)
            same = torch.equal(first.view(torch.uint8), self.row.view(torch.uint8))  # NaN is NaN
            differs = torch.tensor([not same], dtype=torch.uint8, device=self.row.device)
            dist.all_reduce(differs, dist.ReduceOp.MAX, self.group)
        if differs:
            raise ValueError(
                f"{', '.join(self.parameters)}: not all ranks hold the same values. Begin with the same: "
                "the same seed, or broadcast_parameters"
            )


def _chunk(elements: int, rank: int, world: int) -> slice:
    """Chunk (rank+1) mod world of the row, as `tensor_split` cuts it."""
    number, (length, longer) = (rank + 1) % world, divmod(elements, world)
    first = number * length + min(number, longer)
    return slice(first, first + length + (number < longer))
