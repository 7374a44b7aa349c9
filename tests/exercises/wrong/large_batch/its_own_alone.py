"""Nothing is added up over the ranks."""
# message: rank 0 ends with .*That is the mean over this rank\'s samples: add up those of all ranks

import torch


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
        losses.sum().backward()
        samples += len(losses)
    for parameter in model.parameters():
        parameter.grad /= max(samples, 1)


def momentum_step(weights, velocity, gradient, rate, before, momentum):
    velocity.mul_(momentum * rate / before).add_(gradient, alpha=rate)
    weights.sub_(velocity)
