"""Any all-reduce as the communication hook of stock DistributedDataParallel, in a communication thread.

    parallel = DistributedDataParallel(model)
    hook = all_reduce_hook(ring_all_reduce)
    parallel.register_comm_hook(None, hook)
    loss_of(parallel(x), y).backward()          # parameter.grad is the average, by the ring

DistributedDataParallel calls the hook with each bucket that is full, during the backward pass, in the same order on all
ranks; it goes on when the hook has returned a future, and waits for the futures when the backward pass is over. What a
future brings is taken for the average: the hook has to divide. Here it multiplies by this rank's share of the samples,
`hook.share`, which may be set before each backward pass; None: 1/N.

With the last bucket the hook waits for all of them: there is nothing left to overlap with, and what an all-reduce has
raised is raised on the line that called backward.

Source: DistributedDataParallel.register_comm_hook; Li et al., "PyTorch Distributed" (2020), section 3.2.
"""

import torch
import torch.distributed as dist

from .background import Background, Task, group_of_its_own
from .buckets import sum_bucket
from .replicas import AllReduce
from .shares import checked_share


class all_reduce_hook:
    """What `register_comm_hook` takes; all ranks make one. `share`: this rank's share of the samples; None: 1/N."""

    def __init__(self, all_reduce: AllReduce, group: dist.ProcessGroup | None = None) -> None:
        self.share: float | None = None
        self.__name__ = self.__qualname__ = type(self).__name__  # DistributedDataParallel asks for them
        self._all_reduce, self._group = all_reduce, group_of_its_own(group)
        self._background = Background()
        self._travelling: list[tuple[Task, torch.Tensor, torch.futures.Future[torch.Tensor]]] = []

    def __call__(self, state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        if bucket.buffer().layout != torch.strided:
            raise TypeError("a sparse gradient has no place in a bucket: build the layer with sparse=False")
        buffer = bucket.buffer().mul_(checked_share(self.share, self._group))
        task = self._background.submit(sum_bucket, self._all_reduce, buffer, self._group, bucket.index())
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        self._travelling.append((task, buffer, future))
        if bucket.is_last():
            self._wait()
        return future

    def _wait(self) -> None:
        for task, average, future in self._travelling:
            task.wait()
            future.set_result(average)
        self._travelling.clear()
