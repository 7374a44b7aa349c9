"""Keeps the first pull for all rounds, to save time."""
# message: server_step and worker_step on 2 ranks.*: rank 1 sent rank 0 g\(w\[0\]\) as its gradient in round 2

import torch
import torch.distributed as dist

pulled = []


def assign_shards(sizes, servers):
    shards, loads = [[] for _ in range(servers)], [0] * servers
    for parameter in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        lightest = loads.index(min(loads))
        shards[lightest].append(parameter)
        loads[lightest] += sizes[parameter]
    return shards


def worker_step(parameters, gradient, samples, server):
    dist.recv(parameters, server)
    pulled.append(parameters.clone())
    pushed = gradient(pulled[0])
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
