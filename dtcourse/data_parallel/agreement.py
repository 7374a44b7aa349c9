"""All ranks have the same parameters and settings: checked once, before gradients of different ones are added up."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import zip_longest

import torch
import torch.distributed as dist
from torch import nn

from dtcourse.events import region


def check_same_parameters(
    named: Iterable[tuple[str, nn.Parameter]], group: dist.ProcessGroup | None = None, **settings: float
) -> None:
    """Every rank calls it at the same time.

    Raises ValueError, the same on every rank, if names, dtypes, shapes, settings, or what is trained differ anywhere.
    """
    named = list(named)
    facts = [f"{name} is {_described(parameter)}" for name, parameter in named]
    ours = json.dumps(facts + [f"{name} is {value}" for name, value in settings.items()])
    device = named[0][1].device if named else torch.device("cpu")
    with region("control"):
        first = _told(0, ours, device, group)
        differs = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(dist.get_world_size(group))]
        dist.all_gather(differs, torch.tensor([ours != first], dtype=torch.int64, device=device), group=group)
        wrong = [rank for rank, one in enumerate(differs) if one]
        if not wrong:
            return
        other = _told(wrong[0], ours, device, group)
    there, here = next(pair for pair in zip_longest(*map(json.loads, (other, first))) if pair[0] != pair[1])
    root, *ranks = (dist.get_process_group_ranks(group)[rank] for rank in (0, *wrong))
    raise ValueError(
        f"the parameters of rank {', '.join(map(str, ranks))} are not those of rank {root}: {there or 'nothing more'} "
        f"on rank {ranks[0]}, {here or 'nothing more'} on rank {root}. Make it in the same way on all ranks"
    )


def _told(root: int, text: str, device: torch.device, group: dist.ProcessGroup | None) -> str:
    """What rank `root` of the group gives for `text`."""
    content = torch.tensor(list(text.encode()), dtype=torch.uint8, device=device)
    length = torch.tensor([len(content)], dtype=torch.int64, device=device)
    dist.broadcast(length, group_src=root, group=group)
    if dist.get_rank(group) != root:
        content = torch.empty(int(length), dtype=torch.uint8, device=device)
    dist.broadcast(content, group_src=root, group=group)
    return bytes(content.tolist()).decode()


def _described(parameter: nn.Parameter) -> str:
    frozen = "" if parameter.requires_grad else ", frozen"
    return f"{str(parameter.dtype).removeprefix('torch.')} {tuple(parameter.shape)}{frozen}"
