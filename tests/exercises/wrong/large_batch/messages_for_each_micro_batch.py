"""The right sum, but each micro-batch travels by itself."""
# message: 3 \+ 3 \+ 3 \| 3 \+ 3 \+ 3 samples: with 3 micro-batches rank 0 gives away .*add up first and exchange once

import torch
import torch.distributed as dist


def scaled_rate(rate, reference, local, ranks, micro_batches):
    return rate * local * ranks * micro_batches / reference


def warm_up(iteration, small, large, iterations):
    if iteration >= iterations:
        return large
    return small + (large - small) * iteration / iterations


def step_gradients(model, losses_of, micro_batches, group=None):
    rounds = torch.tensor(len(micro_batches))
    dist.all_reduce(rounds, dist.ReduceOp.MAX, group=group)
    sums, samples = [torch.zeros_like(p) for p in model.parameters()], torch.tensor(0)
    for i in range(int(rounds)):
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        if i < len(micro_batches):
            losses = losses_of(model, micro_batches[i])
            losses.sum().backward()
            samples += len(losses)
        for total, parameter in zip(sums, model.parameters(), strict=True):
            dist.all_reduce(parameter.grad, group=group)
            total += parameter.grad
    dist.all_reduce(samples, group=group)
    for total, parameter in zip(sums, model.parameters(), strict=True):
        parameter.grad = total / samples


def momentum_step(weights, velocity, gradient, rate, before, momentum):
    velocity.mul_(momentum * rate / before).add_(gradient, alpha=rate)
    weights.sub_(velocity)
