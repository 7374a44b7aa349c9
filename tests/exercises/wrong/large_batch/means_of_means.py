"""Averages the means of the ranks."""
# message: of 3 \| 1 samples: rank 0 ends with 1/2 g\[0,0\] \+ 1/2 g\[1,0\]; .*A mean of means is not the mean

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
        (losses_of(model, micro).mean() / len(micro_batches)).backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, group=group)
        parameter.grad /= dist.get_world_size(group)


def momentum_step(weights, velocity, gradient, rate, before, momentum):
    velocity.mul_(momentum * rate / before).add_(gradient, alpha=rate)
    weights.sub_(velocity)
