"""The server takes the workers in the order in which they come, and answers in the opposite one."""

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
    pushed = {}
    for _ in workers:
        count, gradient = torch.empty(1, dtype=torch.int64), torch.empty_like(parameters)
        worker = dist.recv(count)
        dist.recv(gradient, src=worker)
        pushed[worker] = count.item(), gradient
    total = sum(count for count, _ in pushed.values())
    for count, gradient in pushed.values():
        parameters -= lr * count / total * gradient
    for worker in reversed(pushed):
        dist.send(parameters, dst=worker)
