"""A small model with all that makes sharding hard, and its training on one process and on ranks."""

from __future__ import annotations

from functools import cache, partial

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

from dtcourse.data_parallel.fully_sharded import FullySharded
from dtcourse.data_parallel.sharded import Sharded

WORDS, WIDTH = 7, 5
SAMPLES = [3, 1, 4, 2, 5, 2]  # of each rank in a step

OPTIMIZERS = {
    "sgd": partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adam": partial(torch.optim.Adam, lr=0.01, weight_decay=0.01),
    "adamw": partial(torch.optim.AdamW, lr=0.01, weight_decay=0.1),
}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 11), nn.Linear(11, WIDTH, bias=False)
        self.idle = nn.Parameter(torch.randn(3))  # in a unit that is used, but itself not

    def forward(self, x, scale=1.0):
        return x + scale * self.down(torch.relu_(self.up(self.norm(x))))


class Model(nn.Module):
    """Units: embedding, two calls of one block, a frozen layer, one that only some steps use, a tied head."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.block = Block()
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.sometimes = nn.Linear(WIDTH, WIDTH)
        self.never = nn.Linear(WIDTH, 2)
        self.head = nn.Linear(WIDTH, WORDS)
        self.head.weight = self.embedding.weight
        self.scale = nn.Parameter(torch.ones(()))  # of no unit

    def forward(self, x, step):
        x = self.block(self.embedding(x))
        x = self.frozen(self.block(x, scale=self.scale))
        if step % 3 == 1:
            x = self.sometimes(x)
        return self.head(x)


def model():
    torch.manual_seed(0)
    return Model().double()


def batches(world, step):
    """(x, y) of each rank."""
    generator = torch.Generator().manual_seed(step)
    x, y = torch.randint(WORDS, (2, sum(SAMPLES[:world])), generator=generator)
    return list(zip(x.split(SAMPLES[:world]), y.split(SAMPLES[:world]), strict=True))


@cache
def alone(world, make_optimizer, steps=20):
    """The state of one process that trains on the samples of all ranks: {"module": ..., "optimizer": {name: state}}."""
    module = model()
    names = dict(module.named_parameters())
    optimizer = make_optimizer([p for p in names.values() if p.requires_grad])
    for step in range(steps):
        xs, ys = zip(*batches(world, step), strict=True)
        optimizer.zero_grad()
        cross_entropy(module(torch.cat(xs), step), torch.cat(ys)).backward()
        optimizer.step()
    states = {name: optimizer.state[p] for name, p in names.items() if p in optimizer.state}
    return {"module": module.state_dict(), "optimizer": states}


def together(stage, make_optimizer, steps=20, group=None, first=0, state=None, **options):
    """The same on the ranks of the group, each with its own samples."""
    module = model()
    kind = FullySharded if stage == 3 else Sharded
    sharded = kind(module, make_optimizer, stage=stage, group=group, **options)
    if state is not None:
        sharded.load_state_dict(state)
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    for step in range(first, first + steps):
        x, y = batches(world, step)[rank]
        with sharded.step(share=len(x) / sum(SAMPLES[:world])):
            cross_entropy(module(x, step), y).backward()
    whole = sharded.state_dict()
    if stage < 3:  # every rank has all new weights, and not only the state's
        assert all(torch.equal(value, whole["module"][name]) for name, value in module.state_dict().items())
    return whole


def difference(ours, theirs):
    """The largest difference of two states; a missing entry raises."""
    assert ours["module"].keys() == theirs["module"].keys()
    assert ours["optimizer"].keys() == theirs["optimizer"].keys()
    pairs = [(ours["module"][key], theirs["module"][key]) for key in theirs["module"]]
    for name, state in theirs["optimizer"].items():
        pairs += [(ours["optimizer"][name][key], value) for key, value in state.items() if value is not None]
    return max((a.double() - b.double()).abs().max().item() for a, b in pairs)
