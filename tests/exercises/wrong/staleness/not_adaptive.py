"""Keeps the mean square, and does not use it."""
# message: the strength is lambda alone, without the mean square


def may_begin(worker, completed, s):
    return completed[worker] - min(completed.values()) <= s


def first_k(steps, step, k):
    applied = [place for place, of in enumerate(steps) if of == step][:k]
    if len(applied) < k:
        return None
    return [1 / k if place in applied else 0.0 for place in range(len(steps))]


def compensate(gradient, weights, backup, lambda_):
    return gradient + lambda_ * gradient * gradient * (weights - backup)


def compensate_adaptive(gradient, weights, backup, lambda_, mean_square, momentum):
    mean_square = momentum * mean_square + (1 - momentum) * gradient * gradient
    return gradient + lambda_ * gradient * gradient * (weights - backup), mean_square
