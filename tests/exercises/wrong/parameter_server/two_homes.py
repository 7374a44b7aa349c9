"""Blocks that overlap by one: the parameter in the middle is kept twice."""
# message: 2 servers: parameter 2 goes to servers 0 and 1: it has to go to exactly one

import torch
import torch.distributed as dist


def assign_shards(sizes, servers):
    each = len(sizes) // servers
    return [list(range(len(sizes)))[server * each : (server + 1) * each + 1] for server in range(servers)]


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
