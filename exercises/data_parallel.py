"""Exercise: data parallelism by hand.

N ranks hold the same model. Of each batch every rank takes a share, computes the gradient of the mean loss over its
share, and then all need the gradient of the mean loss over the whole batch: what one process would have computed.

Three functions. Each is checked on its own, so begin with any.

    share               which samples of a batch are whose
    average_gradients   from the ranks' gradients to the whole batch's
    root_all_reduce     the sum over all ranks, through one of them: what an all-reduce does, the naive way

    group               the ranks that take part, numbered from 0 within the group; None is all ranks
    rank, world         dist.get_rank(group), dist.get_world_size(group): r and N below
    adding up           dist.all_reduce(x, group=group) leaves the sum of everybody's x with everybody, in place
    sending             dist.send(x, group=group, group_dst=other) returns when the other side receives
    receiving           dist.recv(y, group=group, group_src=other) fills y, and returns then

A collective such as all_reduce waits until every rank of the group has called it. One that does not call it, for
whatever reason, leaves the others waiting for ever.

Try it in a notebook with check("data_parallel"), or in a terminal with: dtcourse check data_parallel
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn


def share(samples: int, rank: int, world: int) -> slice:
    """Which samples of a batch rank `rank` of `world` ranks takes, as a slice: x[share(len(x), rank, world)].

    The rule: the shares lie one after the other, in the order of the ranks. They differ by one sample at most: the
    first (samples mod world) ranks have one more than the others. Each sample is in exactly one share. With fewer
    samples than ranks, the last ranks get none.

        world = 4     rank 0   rank 1   rank 2   rank 3
        8 samples     0 1      2 3      4 5      6 7
        10 samples    0 1 2    3 4 5    6 7      8 9
        3 samples     0        1        2        -

    A slice costs nothing: x[slice] is a view into x, no copy. (torch's DistributedSampler deals the samples out like
    cards instead, rank, rank + N, rank + 2N, ..., and repeats some where N does not divide them. Both are fine rules
    for samples that were shuffled before; everybody has to follow the same one.)

    Hint: how many of the ranks before this one have one sample more?
    """
    raise NotImplementedError("not written yet: share")


def average_gradients(model: nn.Module, samples: int, group: dist.ProcessGroup | None = None) -> None:
    """From the gradient of each rank's mean loss to the gradient of the mean loss over all their samples, in place.

    `samples` is how many samples this rank had in this step, n[r]. `parameter.grad` of each of model.parameters() is
    the gradient of the mean loss over these, g[r]. Afterwards it is on every rank

        (n[0] g[0] + n[1] g[1] + ... + n[N-1] g[N-1]) / (n[0] + n[1] + ... + n[N-1])

    For shares of the same size that is the mean of the ranks' gradients. For others it is not. Two ranks:

        samples of rank 0, 1     the whole batch's gradient     the mean of the two
        4, 4                     1/2 g[0] + 1/2 g[1]            1/2 g[0] + 1/2 g[1]
        6, 2                     3/4 g[0] + 1/4 g[1]            1/2 g[0] + 1/2 g[1]      another one

    A rank may have no samples in a step (samples = 0; of all ranks at least one has some). It has nothing to call
    backward() on, so its gradients are None. It takes part all the same, with zeros, and has the average in the end:
    its copy of the model has to make the same step as all the others.

    Hints: no rank knows the others' n; a tensor with n in it can be added up as well. Let the gradients travel as
    tensors, in dist.all_reduce or in messages of your own, and be added up on the way: gathering everybody's on each
    rank takes N times the memory, and gathering them as objects pickles them besides.
    """
    raise NotImplementedError("not written yet: average_gradients")


def root_all_reduce(tensor: torch.Tensor, root: int = 0, group: dist.ProcessGroup | None = None) -> None:
    """The sum over all ranks, in place, on every rank, through the rank `root` of the group, with sends and receives.

    `tensor` is contiguous, of any shape, and the same shape on all ranks. First everybody but the root sends its
    tensor to the root, which adds them all to its own; then the root sends the sum back to everybody. What goes
    through each rank's port, for a tensor of S bytes:

                           receives     sends
        the root           (N-1) S      (N-1) S
        each of the others S            S

    So the more ranks there are, the longer the root takes, while all the others wait for it. How an all-reduce can do
    without such a rank is lesson 04.

    Hints: the root needs a second tensor to receive into (torch.empty_like). It does not send to itself. Who waits
    for whom? With one rank there is nothing to do. `root` is a number within the group, as group_dst and group_src are.
    """
    raise NotImplementedError("not written yet: root_all_reduce")
