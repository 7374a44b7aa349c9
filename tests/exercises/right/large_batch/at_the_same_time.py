"""All all-reduces are started, then all are waited for; one graph over all micro-batches."""

import torch
import torch.distributed as dist


def scaled_rate(rate, reference, local, ranks, micro_batches):
    return rate * local * ranks * micro_batches / reference


def warm_up(iteration, small, large, iterations):
    rate = small if iterations else large
    for _ in range(min(iteration, iterations)):
        rate += (large - small) / iterations
    return rate


def step_gradients(model, losses_of, micro_batches, group=None):
    model.zero_grad()
    losses = torch.cat([losses_of(model, micro) for micro in micro_batches]) if micro_batches else torch.zeros(0)
    if micro_batches:
        losses.sum().backward()
    samples = torch.tensor([len(losses)])
    works = [dist.all_reduce(samples, group=group, async_op=True)]
    for parameter in model.parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        works.append(dist.all_reduce(parameter.grad, group=group, async_op=True))
    for work in works:
        work.wait()
    for parameter in model.parameters():
        parameter.grad.div_(samples.item())


def momentum_step(weights, velocity, gradient, rate, before, momentum):
    velocity.mul_(momentum * rate / before).add_(gradient, alpha=rate)
    weights.sub_(velocity)
