"""The arithmetic is done in NumPy."""

import numpy as np
import torch
import torch.distributed as dist


def assign_shards(sizes, servers):
    shards, loads = [[] for _ in range(servers)], np.zeros(servers)
    for parameter in np.argsort(sizes)[::-1]:
        shards[loads.argmin()].append(parameter)
        loads[loads.argmin()] += sizes[parameter]
    return tuple(shards)


def worker_step(parameters, gradient, samples, server):
    dist.recv(parameters, server)
    pushed = gradient(parameters)
    dist.send(torch.tensor([samples]), server)
    dist.send(pushed, server)


def server_step(parameters, workers, lr):
    counts, gradients = [], []
    for worker in workers:
        samples, gradient = torch.empty(1, dtype=torch.int64), torch.empty_like(parameters)
        dist.recv(samples, worker)
        dist.recv(gradient, worker)
        counts.append(samples.item())
        gradients.append(gradient.numpy())
    mean = np.average(gradients, axis=0, weights=counts)
    parameters.copy_(torch.from_numpy(parameters.numpy() - lr * mean))
    for worker in workers:
        dist.send(parameters, worker)
