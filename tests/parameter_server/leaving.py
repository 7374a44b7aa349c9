"""Workers that leave one after the other, each after a number of steps of its own."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from jobs import small_model

from dtcourse.parameter_server.server import serve
from dtcourse.parameter_server.worker import Worker


def leave_early(policy: Any) -> None:
    model = small_model()
    if dist.get_rank() == 0:
        serve(model, torch.optim.SGD, policy, lr=0.1)
        return
    worker = Worker(model)
    for _ in range(3 * dist.get_rank()):
        worker.pull()
        model(torch.ones(2, 6).double()).sum().backward()
        worker.push(samples=2)
    worker.finish()
