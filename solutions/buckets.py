"""Exercise: gradients in buckets, which travel while the backward pass still computes.

The backward pass yields the gradients of the last layers first. Whoever waits for all of them before the first one
travels leaves the network idle for all that time. So the parameters are put into buckets, from the last to the first,
and as soon as all gradients of a bucket are there its all-reduce starts, and the backward pass goes on meanwhile.

Four functions. Each is checked on its own, so begin with any.

    assign      which parameter is in which bucket
    start       a bucket's gradients as one tensor, and its all-reduce under way
    finish      the averages in parameter.grad
    overlap     the hooks that start each bucket at the right moment

    group               the ranks that take part; None is all ranks
    world               dist.get_world_size(group): N below
    adding up           dist.all_reduce(x, group=group, async_op=True) returns at once, with a handle; from then on x
                        belongs to it. When handle.wait() has returned, x is the sum of everybody's x
    a hook              parameter.register_post_accumulate_grad_hook(f): in every backward pass, f(parameter) is called
                        as soon as parameter.grad is there

Try it in a notebook with check("buckets"), or in a terminal with: dtcourse check buckets
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

MIB = 2**20  # bytes


def assign(
    sizes: Sequence[int], dtypes: Sequence[torch.dtype], bucket_mib: float = 25, first_bucket_mib: float = 1
) -> list[list[int]]:
    """Which parameters are in which bucket: a list of buckets, each a list of numbers of parameters.

    Parameter i has sizes[i] bytes of dtype dtypes[i]. The rule, which is DistributedDataParallel's:

    - The parameters are taken from the last to the first: so come their gradients.
    - Each goes into the bucket of its dtype that is open: a tensor has one dtype, so each dtype has buckets of its own.
    - A bucket that then holds bucket_mib MiB or more is closed: the next parameter of its dtype opens another one. Of
      each dtype, the first bucket is closed with first_bucket_mib already: then something travels soon.
    - The buckets are listed in the order in which they are closed, and at the end those that are still open.

    A parameter is never cut in two. So a bucket may become larger than the limit, and a parameter that is larger than
    the limit is alone in its bucket, or the last one in it. With all limits in bytes here:

        sizes              first, others     buckets                       bytes
        4 4 4 4 4          4, 8              [4] [3 2] [1 0]               4 8 8
        4 4 4 4            4, 9              [3] [2 1 0]                   4 12
        4 99 4 4           4, 8              [3] [2 1] [0]                 4 103 4
        4 4 4              9, 9              [2 1 0]                       12

    Hint: what has to be kept, for each dtype, while you go through the parameters?
    """
    # BEGIN SOLUTION
    buckets: list[list[int]] = []
    opened: dict[torch.dtype, list[int]] = {}
    limits: dict[torch.dtype, float] = {}
    for number in reversed(range(len(sizes))):
        dtype = dtypes[number]
        bucket = opened.setdefault(dtype, [])
        bucket.append(number)
        if sum(sizes[n] for n in bucket) >= limits.get(dtype, first_bucket_mib) * MIB:
            buckets.append(opened.pop(dtype))
            limits[dtype] = bucket_mib
    return buckets + list(opened.values())
    # END SOLUTION


def start(bucket: Sequence[nn.Parameter], group: dist.ProcessGroup | None = None) -> Any:
    """Put the bucket's gradients into one flat tensor, one after the other, and start its all-reduce. Do not wait.

    One all-reduce for the bucket, not one for each parameter: each costs a latency. Return whatever your finish()
    needs; it gets it as it is.

    A parameter whose `grad` is None was not used on this rank. On another rank it may have been: so it takes part with
    zeros. (All ranks have to agree on what is where in the flat tensor.)

    Hints: torch.cat makes one tensor of many. A gradient may be a view that is not contiguous: flatten() does not mind.
    """
    # BEGIN SOLUTION
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    return flat, dist.all_reduce(flat, group=group, async_op=True)
    # END SOLUTION


def finish(bucket: Sequence[nn.Parameter], started: Any, group: dist.ProcessGroup | None = None) -> None:
    """Wait for the all-reduce that start() has started, and put the averages into parameter.grad of the same bucket.

    `started` is what start() has returned. Afterwards each parameter.grad is the mean over the ranks, with its own
    shape: the sum divided by N. A parameter that this rank has not used has a gradient then, too: its copy of the model
    has to make the same step as all the others. (What nobody has used has zeros then. That is good enough here.)

    Hint: tensor.split(sizes) cuts a flat tensor into parts, part.view_as(parameter) gives one its shape.
    """
    # BEGIN SOLUTION
    flat, handle = started
    handle.wait()
    flat /= dist.get_world_size(group)
    for parameter, part in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
        parameter.grad = part.view_as(parameter)
    # END SOLUTION


def overlap(buckets: Sequence[Sequence[nn.Parameter]], group: dist.ProcessGroup | None = None) -> Callable[[], None]:
    """Have each bucket start during the backward pass. Returns a function that is called after each backward pass.

    Called once, before the first step; it gives every parameter a hook. Then, in every step,

        loss.backward()       # the hooks start() a bucket as soon as all its gradients are there, and all buckets
                              # before it have started
        wait()                # what you have returned: start()s the buckets that have not started, and finish()es all
        optimizer.step()

    Why the buckets before it? All ranks have to start the same all-reduces in the same order: the n-th of one rank
    meets the n-th of another. And the gradients do not come in the same order everywhere: where a layer is not used,
    its gradient never comes, and its bucket is not full before wait().

        gradients of       layer 4      layer 3      layer 2      (layer 1 not used)     layer 0      wait()
        bucket 0: 4, 3     .            start
        bucket 1: 2, 1     .            .            .            .                      .            start
        bucket 2: 0        .            .            .            .                      .            start

    After wait() the next step begins from the start: no bucket has a gradient yet.

    Hints: in which bucket is a parameter, what is each bucket still missing, how many have started? Parameters can be
    keys of a dict and elements of a set. A hook must not wait for anything: it holds up the backward pass.
    """
    # BEGIN SOLUTION
    number_of = {parameter: number for number, bucket in enumerate(buckets) for parameter in bucket}
    missing = [set(bucket) for bucket in buckets]
    started: list[Any] = []

    def start_next() -> None:
        started.append(start(buckets[len(started)], group))

    def gradient_is_there(parameter: nn.Parameter) -> None:
        missing[number_of[parameter]].discard(parameter)
        while len(started) < len(buckets) and not missing[len(started)]:
            start_next()

    def wait() -> None:
        while len(started) < len(buckets):
            start_next()
        for bucket, one in zip(buckets, started, strict=True):
            finish(bucket, one, group)
        started.clear()
        missing[:] = [set(bucket) for bucket in buckets]

    for parameter in number_of:
        parameter.register_post_accumulate_grad_hook(gradient_is_there)
    return wait
    # END SOLUTION
