"""A class for each side."""

import torch
import torch.distributed as dist


def assign_shards(sizes, servers):
    shards, loads = [[] for _ in range(servers)], [0] * servers
    for parameter in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        lightest = loads.index(min(loads))
        shards[lightest].append(parameter)
        loads[lightest] += sizes[parameter]
    return shards


class Worker:
    def __init__(self, server):
        self.server = server

    def pull(self, parameters):
        dist.recv(parameters, src=self.server)

    def push(self, gradient, samples):
        dist.send(torch.full((1,), samples, dtype=torch.int64), dst=self.server)
        dist.send(gradient, dst=self.server)


def worker_step(parameters, gradient, samples, server):
    worker = Worker(server)
    worker.pull(parameters)
    worker.push(gradient(parameters), samples)


class Server:
    def __init__(self, parameters, workers):
        self.parameters, self.workers = parameters, workers

    def take(self, worker):
        samples = torch.empty(1, dtype=torch.int64)
        gradient = torch.empty_like(self.parameters)
        dist.recv(samples, src=worker)
        dist.recv(gradient, src=worker)
        return samples.item(), gradient

    def step(self, lr):
        pushes = [self.take(worker) for worker in self.workers]
        total = sum(samples for samples, _ in pushes)
        for samples, gradient in pushes:
            self.parameters.add_(gradient, alpha=-lr * samples / total)

    def publish(self):
        for worker in self.workers:
            dist.send(self.parameters, dst=worker)


def server_step(parameters, workers, lr):
    server = Server(parameters, workers)
    server.step(lr)
    server.publish()
