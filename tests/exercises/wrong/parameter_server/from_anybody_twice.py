"""Takes a number of samples from anybody and then a gradient from anybody, who may be somebody else."""
# message: rank \d raised ValueError: a (send|receive) of .* bytes does not fit(.|\n)*may be another worker's

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
    for _ in workers:
        dist.recv(samples)
        dist.recv(gradient)
        total += samples.item()
        weighted += samples.item() * gradient
    parameters -= lr * weighted / total
    for worker in workers:
        dist.send(parameters, worker)
