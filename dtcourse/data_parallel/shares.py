"""A rank's share of the samples of a step: what its gradient counts for in the average.

Each rank's loss is the mean over its own samples. The gradient of the mean over all samples of the step is then

    n[0]/n g[0] + n[1]/n g[1] + ... + n[N-1]/n g[N-1],      n = n[0] + ... + n[N-1]

So a rank multiplies its gradient by its share n[r]/n, and an all-reduce sums. With equal shares (1/N) that is the mean
of the gradients; with others the mean would be wrong: a rank that has fewer samples would count too much.

For ranks whose numbers of batches differ:

    for batch, share in joined(batches):
        with reducer.step(share):
            if batch is not None:                  # this rank has run out of batches, and others have not
                loss_of(model, batch).backward()

Cost: a step has one small message more, the sum of the numbers of samples, in region("control").

(PyTorch's Join lets the ranks that have run out take part with zeros, too, but divides by the number of ranks that
there were in the beginning: whoever is left alone gets a part of its gradient.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from dtcourse.events import region


def share_of(samples: int, group: dist.ProcessGroup | None = None) -> float:
    """This rank's share of all samples of the step; every rank of the group calls it with its own number.

    Raises ValueError for less than 0 samples, and if nobody has any.
    """
    if samples < 0:
        raise ValueError(f"a rank cannot have {samples} samples")
    total = samples_of_step(samples, group)
    if total == 0:
        raise ValueError("no rank has a sample: there is nothing to average")
    return samples / total


def checked_share(share: float | None, group: dist.ProcessGroup | None = None) -> float:
    """A share that somebody has given; None: all ranks have as many samples. Raises ValueError for one that is none."""
    if share is None:
        return 1 / dist.get_world_size(group)
    if not 0 <= share <= 1:
        raise ValueError(f"share={share}: a rank's share of the samples is between 0 and 1")
    return share


def joined(batches: Iterable[Any], group: dist.ProcessGroup | None = None) -> Iterator[tuple[Any, float]]:
    """Yields (batch, share) until every rank has run out of batches; (None, 0.0) on one that has run out before.

    A batch is a tensor or a tuple of tensors, whose first dimension is the samples. Every rank has to go through all of
    it. Raises ValueError for a batch without samples.
    """
    batches = iter(batches)
    while True:
        batch = next(batches, None)
        samples = 0 if batch is None else len(batch[0] if isinstance(batch, (tuple, list)) else batch)
        if batch is not None and samples == 0:
            raise ValueError("a batch has no samples: leave it out")
        total = samples_of_step(samples, group)
        if total == 0:
            return
        yield batch, samples / total


def samples_of_step(samples: int, group: dist.ProcessGroup | None = None) -> int:
    """The samples of all ranks in this step; every rank of the group calls it with its own number."""
    device = "cuda" if "nccl" in dist.get_backend(group) else "cpu"
    total = torch.tensor(samples, device=device)
    with region("control"):
        dist.all_reduce(total, group=group)
    return int(total)
