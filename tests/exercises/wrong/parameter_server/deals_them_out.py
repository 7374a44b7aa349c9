"""Deals the parameters out in turn, without a look at their sizes."""
# message: 2 servers: server 1 gets 110 of 180 bytes; .* none has over 90\. This looks like dealing them out in turn

import torch
import torch.distributed as dist


def assign_shards(sizes, servers):
    shards = [[] for _ in range(servers)]
    for parameter in range(len(sizes)):
        shards[parameter % servers].append(parameter)
    return shards


def worker_step(parameters, gradient, samples, server):
    dist.recv(parameters, server)
    pushed = gradient(parameters)
    dist.send(torch.tensor([samples]), server)
    dist.send(pushed, server)


def server_step(parameters, workers, lr):
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
