"""Holds the number of completed steps against the number of a step."""
# message: worker \d has completed step  0   and begins step 1


def may_begin(worker, completed, s):
    return min(completed.values()) >= completed[worker] - s - 1


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
