"""Takes a step with each gradient and answers at once: asynchronous by accident."""
# message: server_step on 3 ranks.*rank 0 sent rank 1 parameters before it had received the gradient of rank 2

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
    samples, gradient = torch.empty(1, dtype=torch.int64), torch.empty_like(parameters)
    for worker in workers:
        dist.recv(samples, worker)
        dist.recv(gradient, worker)
        parameters -= lr * gradient
        dist.send(parameters, worker)
