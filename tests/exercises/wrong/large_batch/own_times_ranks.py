"""Its own samples times the ranks, as if all had as many."""
# message: micro-batches of 3 \| 1 samples: rank 0 ends with 1/2 g\[0,0\] \+ 1/6 g\[1,0\]; .*have as many

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
        losses.sum().backward()
        samples += len(losses)
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, group=group)
        parameter.grad /= max(samples, 1) * dist.get_world_size(group)


def momentum_step(weights, velocity, gradient, rate, before, momentum):
    velocity.mul_(momentum * rate / before).add_(gradient, alpha=rate)
    weights.sub_(velocity)
