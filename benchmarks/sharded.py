"""Peak memory of a training step, a rank, in each stage of ZeRO, against what `predicted` says."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import nn

from benchmarks.table import Row
from dtcourse import Cluster
from dtcourse.data_parallel.fully_sharded import FullySharded
from dtcourse.data_parallel.memory import Memory, predicted
from dtcourse.data_parallel.sharded import Sharded
from dtcourse.model_parallel.transformer import Block

RANKS, LAYERS = 4, 8
WIDTH, TOKENS = 256, 8


def rows() -> Iterator[Row]:
    sizes = [parameter.numel() for parameter in Block(WIDTH, 4).parameters()]
    with Cluster(RANKS) as cluster:
        for stage in (1, 2, 3):
            peaks = cluster.run(_peak, stage).results
            expected = predicted(stage, LAYERS * sum(sizes), RANKS, unit=sum(sizes), largest=max(sizes))
            formula = sum(expected.values()) / 2**20
            what = f"ZeRO-{stage}: peak memory a rank, {LAYERS * sum(sizes) / 1e6:.1f} M parameters"
            yield Row(what, "MiB", max(peaks) / 2**20, 1.1, formula, "predicted", at_least=0.9)


def _peak(stage: int) -> int:
    """On a rank: the highest number of bytes in its second step, all kinds together; the first makes Adam's state."""
    torch.manual_seed(0)
    module = nn.Sequential(*[Block(WIDTH, 4) for _ in range(LAYERS)])
    kind = FullySharded if stage == 3 else Sharded
    sharded = kind(module, partial(torch.optim.Adam, lr=1e-3), stage=stage)
    for _ in range(2):
        with Memory(sharded.tensors) as memory, sharded.step():
            module(torch.randn(1, TOKENS, WIDTH)).square().mean().backward()
    return sum(memory.peak.values())
