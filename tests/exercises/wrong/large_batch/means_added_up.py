"""The means of all ranks, added up."""
# message: micro-batches of 2 \| 2 samples: rank 0 ends with g\[0,0\] \+ g\[1,0\]; .*These are means, added up

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
    for micro in micro_batches:
        losses_of(model, micro).mean().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, group=group)


def momentum_step(weights, velocity, gradient, rate, before, momentum):
    velocity.mul_(momentum * rate / before).add_(gradient, alpha=rate)
    weights.sub_(velocity)
