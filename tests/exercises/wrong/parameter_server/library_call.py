"""Leaves the averaging to the library."""
# message: server_step on 2 ranks.*(?s:.*)rank 0 waits in reduce

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
    mean = torch.zeros_like(parameters)
    dist.reduce(mean, dst=dist.get_rank())
    parameters -= lr * mean / len(workers)
    dist.broadcast(parameters, src=dist.get_rank())
