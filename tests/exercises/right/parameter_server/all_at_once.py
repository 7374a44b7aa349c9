"""All receives are started before any is waited for, and all answers too."""

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
    dist.irecv(parameters, server).wait()
    works = [dist.isend(x, server) for x in (torch.tensor([samples]), gradient(parameters))]
    for work in works:
        work.wait()


def server_step(parameters, workers, lr):
    counts = torch.zeros(len(workers), 1, dtype=torch.int64)
    gradients = parameters.new_zeros(len(workers), *parameters.shape)
    works = []
    for worker, count, gradient in zip(workers, counts, gradients, strict=True):
        works += [dist.irecv(count, worker), dist.irecv(gradient, worker)]
    for work in works:
        work.wait()
    shares = (counts / counts.sum()).to(parameters)
    parameters.sub_((shares * gradients.flatten(1)).sum(0).view_as(parameters), alpha=lr)
    for work in [dist.isend(parameters, worker) for worker in workers]:
        work.wait()
