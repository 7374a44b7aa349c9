"""Blocks of equal number; what is left over goes to nobody."""
# message: 2 servers: parameter 4 goes to no server(?s:.*)server 0   x x \. \. \.\n  server 1   \. \. x x \.

import torch
import torch.distributed as dist


def assign_shards(sizes, servers):
    each = len(sizes) // servers
    return [list(range(server * each, (server + 1) * each)) for server in range(servers)]


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
