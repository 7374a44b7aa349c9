"""`Operation`: what a rank has begun, from the moment in which the relay hears of it until the rank has its answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from dtcourse.backends.ledger import Posting
from dtcourse.backends.rows import Group
from dtcourse.grading.sandbox.collectives import Side


@dataclass(eq=False)
class Operation:
    """What a rank has begun. `values`: what it gets, once that is there (`done`)."""

    posting: Posting
    number: int  # as the rank calls it
    sent: list[torch.Tensor] = field(default_factory=list)
    expected: list[torch.Tensor] = field(default_factory=list)  # without values
    side: Side | None = None  # of a collective
    group: Group | None = None
    follows: bool = False  # complete as soon as it is done, whether somebody waits or not
    values: list[torch.Tensor] = field(default_factory=list)
    error: tuple[str, str] | None = None
    done: bool = False
    open: bool = True  # not written down as complete yet
    question: int | None = None  # of the rank that waits for it
    wait_from: int = 0
    words: dict[str, Any] = field(default_factory=dict)  # for the answer

    @property
    def rank(self) -> int:
        return self.posting.rank
