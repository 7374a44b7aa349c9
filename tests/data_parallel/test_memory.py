"""The bytes of a step by kind: what is counted is what lives, and it is what was predicted."""

from __future__ import annotations

import re
from functools import partial

import pytest
import torch
from torch import nn

import dtcourse.data_parallel.memory as memory_file
from dtcourse.collectives.ring import ring_all_reduce
from dtcourse.data_parallel.fully_sharded import FullySharded
from dtcourse.data_parallel.memory import Memory, kinds_of, predicted
from dtcourse.data_parallel.sharded import Sharded

MEMORY = "shared_memory"
WIDTH, LAYERS = 64, 8
UNIT = WIDTH * (WIDTH + 1)
ADAM = partial(torch.optim.Adam, lr=1e-3)


def measured(stage):
    """The peak of the second step, by kind."""
    torch.manual_seed(0)
    module = nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS)])
    optimizer = ADAM(module.parameters())
    if stage:
        sharded = (FullySharded if stage == 3 else Sharded)(module, ADAM, stage=stage)

    def step():
        if stage:
            with sharded.step():
                module(torch.ones(4, WIDTH)).square().mean().backward()
            return
        module(torch.ones(4, WIDTH)).square().mean().backward()
        for parameter in module.parameters():
            ring_all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()

    step()
    with Memory(sharded.tensors if stage else kinds_of(module, optimizer)) as memory:
        step()
    return memory.peak


@pytest.mark.parametrize(("world", "backend"), [(1, MEMORY), (3, "gloo"), (4, MEMORY)])
def test_the_measured_peak_is_the_predicted_one(cluster_of, world, backend):
    peaks = cluster_of(world, backend).run(lambda: [measured(stage) for stage in range(4)]).results
    for rank in range(world):
        for stage, peak in enumerate(peaks[rank]):
            expected = predicted(stage, LAYERS * UNIT, world, unit=UNIT, largest=WIDTH * WIDTH)
            assert 0.9 < sum(peak.values()) / sum(expected.values()) < 1.1, (rank, stage, peak)
            assert peak["optimizer state"] == pytest.approx(expected["optimizer state"], rel=0.01)


def test_the_table_at_the_top_of_the_file():
    rows = re.findall(r"^    (\d)  .* ([\d.]+) GB$", memory_file.__doc__, re.MULTILINE)
    assert [int(stage) for stage, _ in rows] == [0, 1, 2, 3]
    for stage, gigabytes in rows:
        bytes_of = {"parameter_bytes": 2, "gradient_bytes": 2, "optimizer_bytes": 12}
        assert sum(predicted(int(stage), 7.5e9, 64, **bytes_of).values()) / 1e9 == pytest.approx(
            float(gigabytes), abs=0.05
        )


def test_what_is_freed_and_what_grows_is_seen():
    kept, samples = torch.zeros(10), torch.zeros(1000)
    with Memory(lambda: {"kept": [kept, kept[2:]], "counted already": [kept]}) as memory:
        for _ in range(3):
            passing = torch.ones(100)  # each takes the place of the one before
            samples[5:].view(5, 199).add_(1)  # not of the step's making
        kept.untyped_storage().resize_(400)
        del passing
        torch.ones(1)
    assert memory.history[0] == {"kept": 40, "counted already": 0, "the rest": 400}
    assert memory.peak == {"kept": 40, "counted already": 0, "the rest": 800}
    assert memory.history[-1] == {"kept": 400, "counted already": 0, "the rest": 4}


@pytest.mark.parametrize(("stage", "world"), [(4, 2), (-1, 2), (1, 0)])
def test_no_such_stage_or_world(stage, world):
    with pytest.raises(ValueError, match=f"stage={stage}, world={world}"):
        predicted(stage, 100, world)
