"""What a cluster refuses at the door, with a word on what it takes instead."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from dtcourse.network import Link, Network

MAX_WORLD = 64


def check_world_size(world_size: int) -> None:
    """Raise ValueError if there cannot be so many ranks."""
    if type(world_size) is not int or not 1 <= world_size <= MAX_WORLD:
        raise ValueError(f"a cluster has 1 to {MAX_WORLD} ranks, not {world_size!r}")


def check_timeout(timeout: float | None) -> None:
    """Raise ValueError if it is no time."""
    if timeout is not None and timeout <= 0:
        raise ValueError(f"timeout is a number of seconds above 0, or None, not {timeout!r}")


def check_link(link: Link | Network | None, device: str, backend: str) -> None:
    """Raise TypeError if it is no link, ValueError if there is none between such ranks."""
    if link is not None and not isinstance(link, (Link, Network)):
        raise TypeError(f'link is a Link, as in link=Link("1 Gbit/s", "50 us"), or a Network, or None, not {link!r}')
    if link and (device == "cuda" or backend == "nccl"):
        raise ValueError("a link is emulated between ranks on the CPU alone: leave device and backend away")


def check_may_die(may_die: Collection[int], world_size: int, backend: str) -> None:
    """Raise ValueError if the run could not do without these ranks."""
    if unknown := [rank for rank in may_die if rank not in range(world_size)]:
        raise ValueError(f"may_die lists ranks from 0 to {world_size - 1}, and {unknown[0]!r} is none")
    if set(may_die).issuperset(range(world_size)):
        raise ValueError("may_die lists all ranks: leave out one that sees the run to its end")
    if may_die and backend != "shared_memory":
        raise ValueError(f"may_die needs the backend shared_memory: on {backend} the death of a rank ends the run")


def checked_slow(slow: Mapping[int, float], world_size: int) -> dict[int, float]:
    """How many times slower which ranks are. Raises TypeError or ValueError for what is no such thing."""
    if not isinstance(slow, Mapping):
        raise TypeError(f"slow says how many times slower which rank is, as in slow={{2: 3.0}}, not {slow!r}")
    for rank, factor in slow.items():
        if type(rank) is not int or not 0 <= rank < world_size:
            raise ValueError(f"slow names rank {rank!r}, and the cluster has the ranks 0 to {world_size - 1}")
        number = isinstance(factor, (int, float)) and not isinstance(factor, bool)
        if not number or not 1 <= factor < math.inf:
            raise ValueError(f"rank {rank} can be 1 or more times slower, not {factor!r}")
    return {rank: float(factor) for rank, factor in slow.items() if factor > 1}
