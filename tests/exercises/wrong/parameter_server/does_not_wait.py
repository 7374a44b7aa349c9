"""Starts all receives and does not wait for them."""
# message: server_step on 2 ranks.*: rank 0 sent rank 1 parameters before it had waited for the gradient of rank 1

import torch
import torch.distributed as dist


def assign_shards(sizes, servers):
    shards, loads = [[] for _ in range(servers)], [0] * servers
    for parameter in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        lightest = loads.index(min(loads))
        shards[lightest].append(parameter)
        loads[lightest] += sizes[parameter]
    return shards


def worker_step(parameters, gradient, samples, server):
    dist.recv(parameters, server)
    pushed = gradient(parameters)
    dist.send(torch.tensor([samples]), server)
    dist.send(pushed, server)


def server_step(parameters, workers, lr):
    counts = [torch.zeros(1, dtype=torch.int64) for _ in workers]
    gradients = [torch.zeros_like(parameters) for _ in workers]
    for worker, count, gradient in zip(workers, counts, gradients, strict=True):
        dist.irecv(count, worker)
        dist.irecv(gradient, worker)
    mean = sum(n * g for n, g in zip(counts, gradients, strict=True)) / max(sum(counts), 1)
    parameters -= lr * mean
    for worker in workers:
        dist.send(parameters, worker)
