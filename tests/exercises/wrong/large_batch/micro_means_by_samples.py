"""Ranks are weighted by samples, their micro-batches are not."""
# message: micro-batches of 2 \+ 1 \| 3 \+ 2 samples: rank 0 ends with 3/16 g\[0,0\] \+ .* on each rank too

import torch
import torch.distributed as dist


def scaled_rate(rate, reference, local, ranks, micro_batches):
    return rate * local * ranks * micro_batches / reference


def warm_up(iteration, small, large, iterations):
    if iteration >= iterations:
        return large
    return small + (large - small) * iteration / iterations


def step_gradients(model, losses_of, micro_batches, group=None):
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    samples = 0
    for micro in micro_batches:
        losses = losses_of(model, micro)
        (losses.mean() / len(micro_batches)).backward()
        samples += len(losses)
    total = torch.tensor(samples)
    dist.all_reduce(total, group=group)
    for parameter in model.parameters():
        parameter.grad *= samples / total
        dist.all_reduce(parameter.grad, group=group)


def momentum_step(weights, velocity, gradient, rate, before, momentum):
    velocity.mul_(momentum * rate / before).add_(gradient, alpha=rate)
    weights.sub_(velocity)
