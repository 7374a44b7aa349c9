"""The end of the round stands in the loop over the other workers: with one worker it never comes."""
# message: server_step on 2 ranks.*rank 1 waits .* rank 0 has already returned(?s:.*)rank 1 waits in recv of float64

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
    first, *others = workers
    total, weighted = receive(first, parameters)
    for worker in others:
        samples, gradient = receive(worker, parameters)
        total, weighted = total + samples, weighted + gradient
        if worker == others[-1]:
            parameters -= lr * weighted / total
            for each in workers:
                dist.send(parameters, each)


def receive(worker, parameters):
    samples, gradient = torch.empty(1, dtype=torch.int64), torch.empty_like(parameters)
    dist.recv(samples, worker)
    dist.recv(gradient, worker)
    return samples.item(), samples.item() * gradient
