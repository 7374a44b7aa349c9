"""A batch cut into micro-batches.

    tensor, or a tuple of some    a batch: cut along dimension 0, as evenly as can be (10 samples into 4: 3 3 2 2)
    list                          the micro-batches themselves, each a tensor or a tuple, of any sizes

Where the loss is a mean, a micro-batch counts by its share of the samples: the mean of 3, 3, 2 and 2 samples' means is
not the mean of 10 samples.
"""

from __future__ import annotations

from typing import TypeAlias

import torch

Batch: TypeAlias = torch.Tensor | tuple[torch.Tensor, ...]


def cut(batch: Batch | list[Batch], microbatches: int, name: str) -> list[Batch]:
    """The micro-batches of a batch. `name` is what the reader calls it.

    Raises TypeError for what is no batch; ValueError if a micro-batch would be empty, if a tuple's tensors differ in
    their number of samples, or if a list has another length.
    """
    if isinstance(batch, list):
        if len(batch) != microbatches:
            raise ValueError(f"{name}: a list of {len(batch)}, and the schedule has {microbatches} micro-batches")
        for number, one in enumerate(batch):
            if not samples(one, f"{name}[{number}]"):
                raise ValueError(f"{name}[{number}] is empty: a micro-batch has at least one sample")
        return list(batch)
    if (size := samples(batch, name)) < microbatches:
        raise ValueError(
            f"{name}: {size} samples for {microbatches} micro-batches; each needs one at least. "
            "Take a larger batch, or a schedule of fewer micro-batches"
        )
    if isinstance(batch, torch.Tensor):
        return list(torch.tensor_split(batch, microbatches))
    return list(zip(*(torch.tensor_split(tensor, microbatches) for tensor in batch), strict=True))


def samples(batch: Batch, name: str) -> int:
    """How many samples a batch has. Raises as `cut` does."""
    tensors = batch if isinstance(batch, tuple) else (batch,)
    if not tensors or not all(isinstance(tensor, torch.Tensor) and tensor.dim() for tensor in tensors):
        seen = "a tensor of no dimension" if isinstance(batch, torch.Tensor) else type(batch).__name__
        raise TypeError(
            f"{name}: expected a tensor or a tuple of tensors, whose dimension 0 counts the samples, "
            f"or a list of micro-batches; got {seen}"
        )
    sizes = [len(tensor) for tensor in tensors]
    if len(set(sizes)) > 1:
        raise ValueError(f"{name}: the tensors of a batch have {sizes} samples; all need as many")
    return sizes[0]


def shares(microbatches: list[Batch]) -> list[float]:
    """The share of each micro-batch in the samples of the batch; they add up to 1."""
    sizes = [samples(one, "micro-batch") for one in microbatches]
    return [size / sum(sizes) for size in sizes]
