"""Things that are dealt out among ranks or servers, each to exactly one: samples of a batch, parameters of a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence


def not_a_partition(taken: Sequence[Sequence[int]], count: int, thing: str, owner: str = "rank") -> Iterator[str]:
    """What is wrong, in words. `taken`: for each owner, which of the things 0 to `count` - 1 it takes."""
    for who, own in enumerate(taken):
        for number, times in Counter(own).items():
            if not 0 <= number < count:
                yield f"{owner} {who} takes {thing} {number}, and the {thing}s are {span(0, count)}"
            if times > 1:
                yield f"{owner} {who} takes {thing} {number} {times} times"
    for number in range(count):
        owners = [who for who, own in enumerate(taken) if number in own]
        if len(owners) > 1:
            yield f"{thing} {number} goes to {owner}s {' and '.join(map(str, owners))}: it has to go to exactly one"
    for number in range(count):
        if not any(number in own for own in taken):
            yield f"{thing} {number} goes to no {owner}: it has to go to exactly one"


def other_than_the_rule(taken: Sequence[Sequence[int]], count: int, thing: str) -> Iterator[str]:
    """What is wrong, in words, where the shares lie one after the other, and the first ones may be one longer."""
    least, more = divmod(count, len(taken))
    longer = f"{more} x {least + 1} + {len(taken) - more} x {least}, the longer shares first"
    rule = f"{count} = {longer if more else f'{len(taken)} x {least}'}"
    start = 0
    for rank, own in enumerate(taken):
        size = least + (rank < more)
        if len(own) != size:
            yield f"rank {rank} takes {len(own)} {thing}{'s' if len(own) != 1 else ''} and not {size}: {rule}"
        elif sorted(own) != list(range(start, start + size)):
            its = f"rank {rank} takes {thing}s {', '.join(map(str, own))}"
            yield f"{its} and not {span(start, size)}: the shares lie one after the other"
        start += size


def drawn(taken: Sequence[Sequence[int]], count: int, owner: str = "rank") -> str:
    """A row for each owner, a column for each thing."""
    rows = [" ".join(_times(own.count(number)) for number in range(count)) for own in map(list, taken)]
    return "\n".join(f"  {owner} {who}   {row}" for who, row in enumerate(rows))


def span(start: int, size: int) -> str:
    """ "3 to 5", "3", "none"."""
    return f"{start} to {start + size - 1}" if size > 1 else str(start) if size else "none"


def _times(count: int) -> str:
    return "." if count == 0 else "x" if count == 1 else str(count)
