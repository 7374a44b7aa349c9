"""Makes a new tensor: the workers get it, and the server's own stays what it was."""
# message: server_step on 2 ranks.*: rank 0 ends with w as the new parameters.*The given tensor has to change

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
    total, weighted = 0, torch.zeros_like(parameters)
    samples, gradient = torch.empty(1, dtype=torch.int64), torch.empty_like(parameters)
    for worker in workers:
        dist.recv(samples, worker)
        dist.recv(gradient, worker)
        total += samples.item()
        weighted += samples.item() * gradient
    parameters = parameters - lr * weighted / total
    for worker in workers:
        dist.send(parameters, worker)
