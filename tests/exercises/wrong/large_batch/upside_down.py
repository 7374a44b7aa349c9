"""Divides by k."""
# message: and the rate is 3\.2: a larger batch has a larger rate

import torch
import torch.distributed as dist


def scaled_rate(rate, reference, local, ranks, micro_batches):
    return rate * reference / (local * ranks * micro_batches)


def warm_up(iteration, small, large, iterations):
    if iteration >= iterations:
        return large
    return small + (large - small) * iteration / iterations


def step_gradients(model, losses_of, micro_batches, group=None):
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    samples = torch.tensor(0)
    for micro in micro_batches:
        losses = losses_of(model, micro)
        losses.sum().backward()
        samples += len(losses)
    dist.all_reduce(samples, group=group)
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, group=group)
        parameter.grad /= samples


def momentum_step(weights, velocity, gradient, rate, before, momentum):
    velocity.mul_(momentum * rate / before).add_(gradient, alpha=rate)
    weights.sub_(velocity)
