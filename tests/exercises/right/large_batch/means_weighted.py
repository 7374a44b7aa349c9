"""Means, each weighted by its samples; to one rank and back; rates as tensors."""

import torch
import torch.distributed as dist


def scaled_rate(rate, reference, local, ranks, micro_batches):
    return torch.tensor(rate, dtype=torch.float64) * (local * ranks * micro_batches) / reference


def warm_up(iteration, small, large, iterations):
    rates = [small + i * (large - small) / iterations for i in range(iterations)]
    return rates[iteration] if iteration < iterations else large


def step_gradients(model, losses_of, micro_batches, group=None):
    sums, samples = [torch.zeros_like(p) for p in model.parameters()], 0
    for micro in micro_batches:
        losses = losses_of(model, micro)
        gradients = torch.autograd.grad(losses.mean(), list(model.parameters()))
        for total, gradient in zip(sums, gradients, strict=True):
            total += len(losses) * gradient
        samples += len(losses)
    vector = torch.cat([*(total.flatten() for total in sums), torch.tensor([samples])])
    dist.reduce(vector, group_dst=0, group=group)
    dist.broadcast(vector, group_src=0, group=group)
    vector /= vector[-1].item()
    sizes = [total.numel() for total in sums]
    for parameter, part in zip(model.parameters(), vector[:-1].split(sizes), strict=True):
        parameter.grad = part.view_as(parameter).clone()


def momentum_step(weights, velocity, gradient, rate, before, momentum):
    past = velocity / before  # a sum of gradients, at no rate
    velocity.copy_(rate * (momentum * past + gradient))
    weights -= velocity
