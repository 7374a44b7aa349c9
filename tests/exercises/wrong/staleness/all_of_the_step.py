"""Averages all gradients of the step that are there, not the first k."""
# message: returned \[0\.[35].*\]; [2-9] gradients of step \d are there, so it has to be


def may_begin(worker, completed, s):
    return completed[worker] - min(completed.values()) <= s


def first_k(steps, step, k):
    applied = [place for place, of in enumerate(steps) if of == step]
    if len(applied) < k:
        return None
    return [(place in applied) / len(applied) for place in range(len(steps))]


def compensate(gradient, weights, backup, lambda_):
    return gradient + lambda_ * gradient * gradient * (weights - backup)


def compensate_adaptive(gradient, weights, backup, lambda_, mean_square, momentum):
    mean_square = momentum * mean_square + (1 - momentum) * gradient * gradient
    strength = lambda_ / (mean_square + 1e-7).sqrt()
    return gradient + strength * gradient * gradient * (weights - backup), mean_square
