"""Averages what came late into the update."""
# message: was applied in step \d, and came too late: first_k\(\[.*,.*\], .*\) returned \[0


def may_begin(worker, completed, s):
    return completed[worker] - min(completed.values()) <= s


def first_k(steps, step, k):
    if steps.count(step) < k:
        return None
    return [1 / len(steps)] * len(steps)


def compensate(gradient, weights, backup, lambda_):
    return gradient + lambda_ * gradient * gradient * (weights - backup)


def compensate_adaptive(gradient, weights, backup, lambda_, mean_square, momentum):
    mean_square = momentum * mean_square + (1 - momentum) * gradient * gradient
    strength = lambda_ / (mean_square + 1e-7).sqrt()
    return gradient + strength * gradient * gradient * (weights - backup), mean_square
