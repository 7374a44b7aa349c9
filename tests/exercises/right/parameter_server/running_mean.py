"""The mean is brought up to date with each gradient; the shards come from a heap."""

import heapq

import torch
import torch.distributed as dist


def assign_shards(sizes, servers):
    heap = [(0, server, []) for server in range(servers)]
    for size, parameter in sorted(((size, i) for i, size in enumerate(sizes)), reverse=True):
        load, server, shard = heapq.heappop(heap)
        heapq.heappush(heap, (load + size, server, [*shard, parameter]))
    return [shard for _, _, shard in sorted(heap, key=lambda entry: entry[1])]


def worker_step(parameters, gradient, samples, server):
    dist.recv(parameters, server)
    pushed = gradient(parameters)
    dist.send(torch.tensor([samples]), server)
    dist.send(pushed, server)


def server_step(parameters, workers, lr):
    seen, mean = 0, torch.zeros_like(parameters)
    for worker in workers:
        n, g = torch.zeros(1, dtype=torch.int64), torch.zeros_like(parameters)
        dist.recv(n, worker)
        dist.recv(g, worker)
        seen += int(n)
        mean += (g - mean) * int(n) / seen
    parameters.copy_(parameters - lr * mean)
    for worker in workers:
        dist.send(parameters.clone(), worker)
