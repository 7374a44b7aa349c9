"""What travels between two stages, in words of dtype and shape: found by running, asked of nobody.

A receive needs a buffer of the right size before anything has come. So each stage has to know what the one before it
returns. A micro-batch is of the kind that the shapes of its samples make; for a kind that was not there yet, one
micro-batch goes through all stages but the last on trial, and each boundary tells what it carries:

    every step    the kinds of the micro-batches go from rank to rank: one small message each, ahead of the activations
    a new kind    from stage to stage: how many tensors, what they are, the tensors

All that is sent inside `region("control")`: the bytes of a recorded run are those of activations and gradients alone.
A gradient needs no description: it has the shape of its activation.

Cost: a step in which nothing is new waits for nothing that it would not wait for anyway.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.distributed as dist

from dtcourse.events import region
from dtcourse.model_parallel.activations import receive, send

from .actions import Value

if TYPE_CHECKING:
    from .stage import Stage

DTYPES = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128),
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
)
MOST_DIMENSIONS = 8
Tensors = tuple[torch.Tensor, ...]


class Description(NamedTuple):
    """What a stage must know of a tensor before it comes."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    requires_grad: bool  # whether a gradient has to come back

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')} {self.shape}"

    def empty(self, device: torch.device) -> torch.Tensor:
        return torch.empty(self.shape, dtype=self.dtype, device=device)


def described(tensors: Sequence[torch.Tensor]) -> tuple[Description, ...]:
    return tuple(Description(tensor.dtype, tuple(tensor.shape), tensor.requires_grad) for tensor in tensors)


def in_words(descriptions: Sequence[Description], gradients: bool = False) -> str:
    """`gradients`: say also whether they ask for one."""
    return ", ".join(f"{one}{f' requires_grad={one.requires_grad}' * gradients}" for one in descriptions)


def header(descriptions: Sequence[Description]) -> torch.Tensor:
    """A row of int64 for each tensor. Raises TypeError for what cannot travel."""
    rows = []
    for one in descriptions:
        if one.dtype not in DTYPES or len(one.shape) > MOST_DIMENSIONS:
            raise TypeError(f"{one} was to be handed on: at most {MOST_DIMENSIONS} dimensions, and an ordinary dtype")
        padding = [0] * (MOST_DIMENSIONS - len(one.shape))
        rows.append([DTYPES.index(one.dtype), one.requires_grad, len(one.shape), *one.shape, *padding])
    return torch.tensor(rows, dtype=torch.int64, device="cpu")


def read_header(rows: torch.Tensor) -> tuple[Description, ...]:
    return tuple(
        Description(DTYPES[dtype], tuple(sizes[:dimensions]), bool(requires_grad))
        for dtype, requires_grad, dimensions, *sizes in rows.tolist()
    )


class Boundaries:
    """What comes into and goes out of the stages of this rank, for each micro-batch of a batch.

    `device`: of this rank's stages. Every rank of the group makes one at the same time: NCCL carries no CPU tensors,
    so with stages on a GPU the headers get a gloo group of their own.
    """

    def __init__(self, stages: Mapping[int, Stage], count: int, device: torch.device, group: dist.ProcessGroup) -> None:
        self.device = device
        self._stages, self._count, self._group = stages, count, group
        self._rank, self._world = dist.get_rank(group), dist.get_world_size(group)
        self._control = group
        if device.type != "cpu":
            ranks = dist.get_process_group_ranks(group)
            self._control = dist.new_group(ranks, backend="gloo", use_local_synchronization=True)
        self._numbers: dict[tuple[Description, ...], int] = {}  # on rank 0: of each kind
        self._kinds: list[dict[int, tuple[Description, ...]]] = []  # of each kind: what each stage here hands on
        self._batch: list[int] = []  # the kinds of the micro-batches
        self._told: list[dist.Work] = []  # on their way to the next rank

    def of(self, value: Value) -> tuple[Description, ...]:
        """What an activation or a gradient consists of: one tensor, several, or none."""
        kind = self._kinds[self._batch[value.microbatch]]
        if value.name == "activation":
            return kind[value.stage]
        return tuple(one for one in kind[value.stage - 1] if one.requires_grad)

    def find(self, microbatches: int, samples: Sequence[Tensors] | None) -> None:
        """Begin a batch. `samples`: on the rank of the first stage, its micro-batches."""
        with region("control"):
            if samples is not None:
                kinds = [self._numbers.setdefault(described(one), len(self._numbers)) for one in samples]
                numbers = torch.tensor(kinds, dtype=torch.int64, device="cpu")
            else:
                numbers = torch.empty(microbatches, dtype=torch.int64, device="cpu")
                receive(numbers, self._rank - 1, self._control)
            if self._rank < self._world - 1:
                onward = dist.P2POp(dist.isend, numbers, group=self._control, group_peer=self._rank + 1)
                self._told = dist.batch_isend_irecv([onward])
            self._batch = numbers.tolist()
            for kind in range(len(self._kinds), max(self._batch) + 1):
                microbatch = self._batch.index(kind)
                self._kinds.append(self._try(microbatch, None if samples is None else samples[microbatch]))

    def finish(self) -> None:
        """End a batch: the next rank, which may still have been at the batch before, knows the kinds by now."""
        for work in self._told:
            work.wait()
        self._told = []

    def _try(self, microbatch: int, tensors: Tensors | None) -> dict[int, tuple[Description, ...]]:
        """Let a micro-batch go through the stages of this rank. In the order of the stages, so nothing can cross."""
        handed_on: dict[int, tuple[Description, ...]] = {}
        last = self._count - 1
        for number, stage in sorted(self._stages.items()):
            if number and self._world > 1:
                handed_on[number - 1], tensors = self._hear((number - 1) % self._world, number < last)
            if number < last:
                outputs = stage.trial(microbatch, tensors)
                handed_on[number] = described(outputs)
                tensors = tuple(output.detach().requires_grad_(output.requires_grad) for output in outputs)
                if self._world > 1:
                    self._tell(tensors, (number + 1) % self._world, number + 1 < last)
        return handed_on

    def _tell(self, tensors: Tensors, to: int, values: bool) -> None:
        """Say what they are; the last stage, which is not tried, needs no `values`."""
        rows = header(described(tensors))
        send(torch.tensor([len(rows)], device="cpu"), to, self._control)
        send(rows, to, self._control)
        for tensor in tensors if values else ():
            send(tensor.detach(), to, self._group)

    def _hear(self, source: int, values: bool) -> tuple[tuple[Description, ...], Tensors]:
        size = torch.empty(1, dtype=torch.int64, device="cpu")
        receive(size, source, self._control)
        rows = torch.empty(int(size), 3 + MOST_DIMENSIONS, dtype=torch.int64, device="cpu")
        receive(rows, source, self._control)
        descriptions = read_header(rows)
        tensors = tuple(one.empty(self.device) for one in descriptions if values)
        for tensor in tensors:
            receive(tensor, source, self._group)
        for tensor, one in zip(tensors, descriptions, strict=False):
            tensor.requires_grad_(one.requires_grad)
        return descriptions, tensors
