"""Gradients in buckets: while the backward pass goes on, the gradients that are there already travel.

    reducer = Reducer(model, ring_all_reduce)
    for x, y in batches:                             # each rank its own
        with reducer.step():
            loss_of(model(x), y).backward()          # starts the all-reduce of each bucket that is full
        optimizer.step()                             # leaving the block has waited for all of them
        optimizer.zero_grad()

The backward pass yields the last layers' gradients first. So the parameters are put into buckets in reverse order, and
a bucket is closed when it holds the limit or more. The first one is smaller: the sooner it is full, the sooner the
network has something to do. One all-reduce for each parameter would begin sooner still, and cost a latency each; one
for all would begin when the backward pass is over. A hook on each parameter, called when its gradient is there, puts it
into its bucket; a bucket is handed to the communication thread when it is full and its predecessors have been. So all
ranks start the same all-reduces in the same order, whatever order their gradients come in.

    backward   | layer 3 | layer 2 | layer 1 | layer 0 |
    network              | bucket 0          | bucket 1           |
                                                       ^ the last gradient is there: the wait begins

Cost: the time of a step is that of the backward pass and of what is left of the communication when it ends: of the last
bucket at least. Without overlap it is the sum of both.

Source: Li et al., "PyTorch Distributed: experiences on accelerating data parallel training" (2020), section 3.2.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dtcourse.events import region

from .agreement import check_same_parameters
from .background import Background, Task, group_of_its_own
from .flat import FlatGradients
from .gradient_hooks import tell, untell
from .replicas import AllReduce, add_up
from .shares import checked_share

MIB = 1 << 20


def assign(parameters: Iterable[nn.Parameter], bucket_mib: float, first_bucket_mib: float) -> list[list[nn.Parameter]]:
    """The buckets: from the last parameter to the first, each goes into the open bucket of its dtype and device.

    A bucket is closed when it holds `bucket_mib` or more; the first one of its kind, `first_bucket_mib`. So a parameter
    that is larger has a bucket of its own, or closes one. The buckets come in the order in which they are complete.
    """
    Kind = tuple[torch.dtype, torch.device]
    buckets: list[list[nn.Parameter]] = []
    opened: dict[Kind, list[nn.Parameter]] = {}
    limits: defaultdict[Kind, float] = defaultdict(lambda: first_bucket_mib)
    sizes: Counter[Kind] = Counter()
    for parameter in reversed(list(parameters)):
        kind = parameter.dtype, parameter.device
        opened[kind] = [*opened.pop(kind, []), parameter]  # taken out first: what is left at the end is in order, too
        sizes[kind] += parameter.nbytes
        if sizes[kind] >= limits[kind] * MIB:
            buckets.append(opened.pop(kind))
            limits[kind], sizes[kind] = bucket_mib, 0
    return [*buckets, *opened.values()]


class Reducer:
    """Averages the gradients of `module` over the ranks of `group`, with `all_reduce`, bucket by bucket.

    all_reduce      f(tensor, group=None): sums a contiguous tensor over the ranks, in place
    bucket_mib      a bucket is full with so many MiB; `first_bucket_mib`: the first one. 0: a bucket for each parameter
    overlap         False: the buckets travel when the backward pass is over

    Every rank makes one, of the same model. Parameters that are not trained are left out. The buckets travel in a group
    of their own, so the ranks may say something else in `group` while a step is on.
    Raises ValueError if the models differ, if no parameter is trained, for a negative size, or for a
    DistributedDataParallel, which averages already.
    """

    def __init__(
        self,
        module: nn.Module,
        all_reduce: AllReduce,
        *,
        bucket_mib: float = 25,
        first_bucket_mib: float = 1,
        overlap: bool = True,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        if not (bucket_mib >= 0 and first_bucket_mib >= 0):
            raise ValueError(f"buckets of {bucket_mib} MiB, the first of {first_bucket_mib}: a size is 0 or more")
        if isinstance(module, DistributedDataParallel):
            raise ValueError("DistributedDataParallel averages already: give the model inside it, its .module")
        trained = [p for p in module.parameters() if p.requires_grad]
        if not trained:
            raise ValueError("no parameter of the model is trained: there is nothing to average")
        self.buckets = [FlatGradients(bucket) for bucket in assign(trained, bucket_mib, first_bucket_mib)]
        self._bucket_of = {p: number for number, bucket in enumerate(self.buckets) for p in bucket.parameters}
        sizes = {"bucket_mib": bucket_mib, "first_bucket_mib": first_bucket_mib}
        check_same_parameters(module.named_parameters(), group, **sizes)
        self._module = module
        self._all_reduce, self._group = all_reduce, group_of_its_own(group)
        self._share: float | None = None  # of the step that is on
        self._turn = threading.Lock()  # on GPUs, threads of autograd's call the hooks
        self._background = Background()
        notice = partial(_notice, weakref.ref(self))  # a hook that held this object would keep it for ever
        self._end = weakref.finalize(self, untell, tell(notice, trained) if overlap else [])

    @contextmanager
    def step(self, share: float | None = None) -> Iterator[None]:
        """The block with the last backward pass of a step. When it is left, each `parameter.grad` is the average.

        `share` is this rank's share of the samples of the step; None: 1/N. A rank without a batch goes through the
        block with a share of 0, and does nothing in it. Backward passes before it, outside of any block, only
        accumulate: what they have left in `parameter.grad` is averaged, too.

        A parameter that nobody has used has no gradient afterwards. Raises what an all-reduce has raised; ValueError
        for a share that is none; RuntimeError for a second backward pass in a block, for an optimizer's step in it, and
        for another block after one that was left by an exception while gradients travelled: nobody knows how far the
        other ranks have come.
        """
        self._begin(checked_share(share, self._group))
        try:
            yield
            if self._versions != self._versions_now():
                raise RuntimeError(
                    "the parameters were changed inside the block, by gradients of this rank alone: the averages are "
                    "there when the block is left, so call optimizer.step() after it"
                )
            for number, bucket in enumerate(self.buckets):
                for parameter in bucket.parameters:
                    if parameter not in self._arrived:
                        bucket.put(parameter, self._share)
                if number == len(self._tasks):
                    self._start(bucket)
            for task in self._tasks:
                task.wait()
        except BaseException:
            if self._tasks:
                self._close()
            raise
        finally:
            self._share = None
        for bucket in self.buckets:
            bucket.scatter()

    def close(self) -> None:
        """Take the hooks off the model, and end the communication thread. So does dropping the object.

        Raises RuntimeError inside a step.
        """
        if self._share is not None:
            raise RuntimeError("close() inside a step: other ranks wait for gradients that are on their way")
        self._close()

    # -- inside -------------------------------------------------------------------------------------------------

    def _close(self) -> None:
        self._end()
        self._background.close()

    def _begin(self, share: float) -> None:
        if not self._end.alive:
            raise RuntimeError("this Reducer is closed, by close() or by a step that failed: make another one")
        if self._share is not None:
            raise RuntimeError("a step is on already: leave its block before the next one")
        for name, parameter in self._module.named_parameters():
            if parameter.requires_grad and parameter not in self._bucket_of:
                raise RuntimeError(
                    f"{name} was not trained, or not there, when this Reducer was made: make another one"
                )
        self._share = share
        self._versions = self._versions_now()
        self._arrived: set[nn.Parameter] = set()
        self._tasks: list[Task] = []

    def _versions_now(self) -> list[int]:
        """How often each parameter has been changed in place."""
        return [parameter._version for parameter in self._bucket_of]

    def _arrives(self, parameter: nn.Parameter) -> None:
        """The gradient of a parameter is there: the hook."""
        if self._share is None:  # outside of the block
            return
        with self._turn:
            if parameter in self._arrived:
                name = next(name for name, p in self._module.named_parameters() if p is parameter)
                raise RuntimeError(
                    f"a second gradient of {name} in one step: the first one already travels. "
                    "Leave only the last backward pass in the block; those before it, outside of it, add up"
                )
            self._arrived.add(parameter)
            self.buckets[self._bucket_of[parameter]].put(parameter, self._share)
            while self._next_is_full():
                self._start(self.buckets[len(self._tasks)])

    def _next_is_full(self) -> bool:
        number = len(self._tasks)
        return number < len(self.buckets) and self._arrived.issuperset(self.buckets[number].parameters)

    def _start(self, bucket: FlatGradients) -> None:
        self._tasks.append(
            self._background.submit(sum_bucket, self._all_reduce, bucket.buffer, self._group, len(self._tasks))
        )


def sum_bucket(all_reduce: AllReduce, buffer: torch.Tensor, group: dist.ProcessGroup | None, number: int) -> None:
    """What the communication thread does: one all-reduce, with the bucket's number in the record and in errors."""
    try:
        with region("all-reduce", bucket=number):
            add_up(all_reduce, buffer, group)
    except Exception as problem:
        problem.add_note(f"in the all-reduce of bucket {number}: {buffer.numel():,} numbers, {buffer.dtype}")
        raise


def _notice(reducer: weakref.ref[Reducer], parameter: nn.Parameter) -> None:
    if (alive := reducer()) is not None:
        alive._arrives(parameter)
