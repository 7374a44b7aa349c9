"""Knows it, and does not say it."""
# message: 1 worker, s = 0: worker 1 was kept from step 0 .* returned None


def may_begin(worker, completed, s):
    may = completed[worker] - min(completed.values()) <= s  # noqa: F841


def first_k(steps, step, k):
    applied = [place for place, of in enumerate(steps) if of == step][:k]
    if len(applied) < k:
        return None
    return [1 / k if place in applied else 0.0 for place in range(len(steps))]


def compensate(gradient, weights, backup, lambda_):
    return gradient + lambda_ * gradient * gradient * (weights - backup)


def compensate_adaptive(gradient, weights, backup, lambda_, mean_square, momentum):
    mean_square = momentum * mean_square + (1 - momentum) * gradient * gradient
    strength = lambda_ / (mean_square + 1e-7).sqrt()
    return gradient + strength * gradient * gradient * (weights - backup), mean_square
