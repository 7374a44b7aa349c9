"""Exercise: the synchronous parameter server.

One rank, the server, holds the parameters w. The others, the workers, compute gradients g, each on samples of its own.
In each round

    a worker        pulls w, computes g on it, pushes g together with its number of samples
    the server      takes in the gradients of all workers, averages them, takes one step of SGD, sends the new w to all

So a training is:

    the server                                      a worker
    for worker in workers:                          for gradient, samples in batches:
        dist.send(parameters, worker)                   worker_step(parameters, gradient, samples, server)
    for _ in rounds:                                dist.recv(parameters, server)
        server_step(parameters, workers, lr)

The reply to a push is the next pull: hence one send before the first round, and one receive after the last.

Three functions, in any order: each is checked against partners that are given, whatever the others are like.

    sending         dist.send(tensor, rank) returns when the other side has taken the tensor
    receiving       dist.recv(tensor, rank) fills a tensor; it has to have the shape and the dtype of what comes
    a push          is two messages: first the number of samples n, as torch.tensor([n]), one int64; then the gradient

With W workers and S bytes of parameters, a round brings W (S + 8) bytes into the server and W S bytes out of it, all
through one port. So real systems deal the parameters out to several servers: that is the first function.

Try it in a notebook with check("parameter_server"), or in a terminal with: dtcourse check parameter_server
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist


def assign_shards(sizes: Sequence[int], servers: int) -> list[list[int]]:
    """Which server keeps which parameters: for each server, the list of their numbers.

    `sizes[i]` is the size of parameter i in bytes. Each parameter goes to exactly one server, whole, and the servers
    have as equal loads as possible. To find the best way of all is hard. With this rule the fullest server never has
    more than 4/3 of the bytes that it has in the best way:

        Take the largest parameter first. Give each to the server that has the fewest bytes so far.

    For sizes [10, 60, 20, 50, 40] and two servers:

        parameter              1    3    4    2    0
        bytes                 60   50   40   20   10
        goes to server         0    1    1    0    0
        bytes on server 0     60   60   60   80   90        [1, 2, 0]
        bytes on server 1      0   50   90   90   90        [3, 4]

    Another rule is as good, if its fullest server gets no more bytes than the fullest one here.

    Nobody sends anything: every rank computes this for itself, and all have to come to the same result. With more
    servers than parameters some stay empty. Hint: sorted(range(len(sizes)), key=...)
    """
    # BEGIN SOLUTION
    shards: list[list[int]] = [[] for _ in range(servers)]
    loads = [0] * servers
    for parameter in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        lightest = loads.index(min(loads))
        shards[lightest].append(parameter)
        loads[lightest] += sizes[parameter]
    return shards
    # END SOLUTION


def worker_step(
    parameters: torch.Tensor, gradient: Callable[[torch.Tensor], torch.Tensor], samples: int, server: int
) -> None:
    """One round of a worker. It keeps no learning rate and takes no step: that is up to the server.

        pull        receive the parameters from the rank `server`, into `parameters` itself
        compute     gradient(parameters) is the mean gradient over this worker's samples, a tensor of the same shape
        push        send the number of samples, then the gradient

    In this order: a gradient that was computed before the pull belongs to parameters that are gone. Returns None.
    """
    # BEGIN SOLUTION
    dist.recv(parameters, server)
    pushed = gradient(parameters)
    dist.send(torch.tensor([samples]), server)
    dist.send(pushed, server)
    # END SOLUTION


def server_step(parameters: torch.Tensor, workers: Sequence[int], lr: float) -> None:
    """One round of the server: a step of SGD with the gradients of all `workers` (their ranks). Returns None.

    From each worker come its number of samples n and its gradient g, which is the mean over these samples. The mean
    over the samples of all workers weights each gradient by its samples:

        mean  =  sum of n g  /  sum of n            w  =  w - lr * mean,  in place

    For example one parameter, w = 10, two workers, lr = 1:

                        n       g       n g
        worker 1        1       4       4
        worker 2        3       0       0
        sum             4               4           mean = 1 (and not 2): the new w is 9

    The step is taken when the last gradient is in, and not before. After it, send the new parameters to each worker.
    """
    # BEGIN SOLUTION
    total, weighted = 0, torch.zeros_like(parameters)
    samples, gradient = torch.empty(1, dtype=torch.int64), torch.empty_like(parameters)
    for worker in workers:
        dist.recv(samples, worker)
        dist.recv(gradient, worker)
        total += samples.item()
        weighted += samples.item() * gradient
    parameters -= lr * weighted / total
    for worker in workers:
        dist.send(parameters, worker)
    # END SOLUTION
