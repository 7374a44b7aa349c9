"""Works in place, on clones; the pair comes back as a list, the shares as a tuple."""

import torch


def may_begin(worker, completed, s):
    return not any(completed[worker] > steps + s for steps in completed.values())


def first_k(steps, step, k):
    left, shares = k, [0.0] * len(steps)
    for place, of in enumerate(steps):
        if of == step and left:
            shares[place], left = 1.0 / k, left - 1
    return None if left else tuple(shares)


def compensate(gradient, weights, backup, lambda_):
    return corrected(gradient, weights, backup, torch.full_like(gradient, lambda_))


def compensate_adaptive(gradient, weights, backup, lambda_, mean_square, momentum):
    new = mean_square.clone().mul_(momentum).addcmul_(gradient, gradient, value=1 - momentum)
    return [corrected(gradient, weights, backup, lambda_ / torch.sqrt(new + 1e-7)), new]


def corrected(gradient, weights, backup, strength):
    result = weights.clone()
    return result.sub_(backup).mul_(gradient).mul_(gradient).mul_(strength).add_(gradient)
