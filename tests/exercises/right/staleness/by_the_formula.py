"""The formulas, word by word."""

import torch


def may_begin(worker, completed, s):
    c = completed[worker]
    last_completed_step = {w: steps - 1 for w, steps in completed.items()}
    return all(last >= c - s - 1 for last in last_completed_step.values())


def first_k(steps, step, k):
    shares, found = [], 0
    for of in steps:
        applied = of == step and found < k
        found += applied
        shares.append(1 / k if applied else 0)
    return shares if found == k else None


def compensate(gradient, weights, backup, lambda_):
    return gradient + lambda_ * torch.pow(gradient, 2) * (weights - backup)


def compensate_adaptive(gradient, weights, backup, lambda_, mean_square, momentum):
    square = torch.pow(gradient, 2)
    ms = momentum * mean_square + (1 - momentum) * square
    return gradient + lambda_ / torch.sqrt(ms + 1e-7) * square * (weights - backup), ms
