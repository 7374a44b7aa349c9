"""A frozen dataclass with slots, a weak cache, an enum, matching, and a garbage collection in each step."""

import enum
import gc
import weakref
from dataclasses import dataclass, field

import torch
import torch.distributed as dist


class Half(enum.Enum):
    REDUCE = 0
    GATHER = 1


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Place:
    group: object = None
    rank: int = field(init=False)
    world: int = field(init=False)

    def __post_init__(self):
        object.__setattr__(self, "rank", dist.get_rank(self.group))
        object.__setattr__(self, "world", dist.get_world_size(self.group))


PLACES = weakref.WeakSet()


def go_round(tensor, group, half):
    PLACES.add(place := Place(group))
    chunks = torch.tensor_split(tensor.flatten(), place.world)
    for step in range(place.world - 1):
        out = chunks[(place.rank - step + half.value) % place.world]
        own = chunks[(place.rank - step - 1 + half.value) % place.world]
        received = torch.zeros(own.shape, dtype=own.dtype)
        works = (
            dist.isend(out, group=group, group_dst=(place.rank + 1) % place.world),
            dist.irecv(received, group=group, group_src=(place.rank - 1) % place.world),
        )
        gc.collect()
        all(map(dist.Work.wait, works))
        match half:
            case Half.REDUCE:
                own += received
            case Half.GATHER:
                own.copy_(received)


def ring_reduce_scatter(tensor, group=None):
    go_round(tensor, group, Half.REDUCE)


def ring_all_gather(tensor, group=None):
    go_round(tensor, group, Half.GATHER)


def ring_all_reduce(tensor, group=None):
    for half in Half:
        go_round(tensor, group, half)
