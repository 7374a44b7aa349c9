"""All ranks have the same parameters: checked once, before gradients of different ones are added up."""

from __future__ import annotations

import json
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn

from dtcourse.events import region


def check_same_parameters(named: Iterable[tuple[str, nn.Parameter]], group: dist.ProcessGroup | None = None) -> None:
    """Raises ValueError on every rank if names, dtypes or shapes differ anywhere, with the first that differs.

    Every rank calls it at the same time. The parameters of a rank are on one device.
    """
    named = list(named)
    ours = json.dumps([[name, str(p.dtype).removeprefix("torch."), list(p.shape)] for name, p in named])
    device = named[0][1].device if named else torch.device("cpu")
    with region("control"):
        theirs = _of_first_rank(ours, device, group)
        others = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(dist.get_world_size(group))]
        dist.all_gather(others, torch.tensor([ours != theirs], dtype=torch.int64, device=device), group=group)
    wrong = [dist.get_global_rank(group or dist.group.WORLD, rank) for rank, differs in enumerate(others) if differs]
    if wrong:
        first = dist.get_global_rank(group or dist.group.WORLD, 0)
        here = f": {_difference(ours, theirs, first)}" if ours != theirs else ""
        raise ValueError(
            f"the parameters of rank {', '.join(map(str, wrong))} are not those of rank {first}{here}. "
            "Build the model in the same way on all ranks"
        )


def _of_first_rank(text: str, device: torch.device, group: dist.ProcessGroup | None) -> str:
    """What rank 0 of the group gives for `text`."""
    content = torch.tensor(list(text.encode()), dtype=torch.uint8, device=device)
    length = torch.tensor([len(content)], dtype=torch.int64, device=device)
    dist.broadcast(length, group_src=0, group=group)
    if dist.get_rank(group) > 0:
        content = torch.empty(int(length), dtype=torch.uint8, device=device)
    dist.broadcast(content, group_src=0, group=group)
    return bytes(content.tolist()).decode()


def _difference(ours: str, theirs: str, first: int) -> str:
    here, there = json.loads(ours), json.loads(theirs)
    for one, other in zip(here, there, strict=False):
        if one != other:
            return f"{_described(*one)} here, {_described(*other)} on rank {first}"
    return f"{len(here)} here, {len(there)} on rank {first}"


def _described(name: str, dtype: str, shape: list[int]) -> str:
    return f"{name} is {dtype} {tuple(shape)}"
