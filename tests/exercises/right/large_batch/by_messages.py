"""Gradients go along the ranks and back, in messages."""

import torch
import torch.distributed as dist


def scaled_rate(rate, reference, local, ranks, micro_batches):
    return rate * local * ranks * micro_batches / reference


def warm_up(iteration, small, large, iterations):
    if iteration >= iterations:
        return large
    return small + (large - small) * iteration / iterations


def step_gradients(model, losses_of, micro_batches, group=None):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    samples = 0
    for micro in micro_batches:
        losses = losses_of(model, micro)
        losses.sum().backward()
        samples += len(losses)
    vector = torch.cat([*(p.grad.flatten() for p in model.parameters()), torch.tensor([float(samples)])])
    arriving = torch.empty_like(vector)
    if rank > 0:
        dist.recv(arriving, group=group, group_src=rank - 1)
        vector += arriving
    if rank < world - 1:
        dist.send(vector, group=group, group_dst=rank + 1)
        dist.recv(vector, group=group, group_src=rank + 1)
    if rank > 0:
        dist.send(vector, group=group, group_dst=rank - 1)
    sizes = [p.numel() for p in model.parameters()]
    for parameter, part in zip(model.parameters(), vector[:-1].split(sizes), strict=True):
        parameter.grad = (part / vector[-1]).view_as(parameter)


def momentum_step(weights, velocity, gradient, rate, before, momentum):
    velocity.mul_(momentum * rate / before).add_(gradient, alpha=rate)
    weights.sub_(velocity)
