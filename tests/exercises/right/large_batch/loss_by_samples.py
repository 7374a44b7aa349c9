"""The number of samples travels first, each loss is divided by it, and all gradients travel as one vector."""

import math

import torch
import torch.distributed as dist


def scaled_rate(rate, reference, local, ranks, micro_batches):
    k = math.prod((local, ranks, micro_batches)) / reference
    return k * rate


def warm_up(iteration, small, large, iterations):
    done = 1.0 if iterations == 0 else min(iteration / iterations, 1.0)
    return (1 - done) * small + done * large


def step_gradients(model, losses_of, micro_batches, group=None):
    samples = torch.tensor([float(sum(len(losses_of(model, micro)) for micro in micro_batches))])
    dist.all_reduce(samples, group=group)
    model.zero_grad(set_to_none=False)
    for micro in micro_batches:
        (losses_of(model, micro).sum() / samples.item()).backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    vector = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(vector, group=group)
    for gradient, part in zip(gradients, vector.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))


def momentum_step(weights, velocity, gradient, rate, before, momentum):
    velocity.copy_(momentum * velocity * (rate / before) + rate * gradient)
    weights.copy_(weights - velocity)
