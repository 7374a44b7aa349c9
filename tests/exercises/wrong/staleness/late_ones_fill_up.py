"""A late gradient is dropped, but counts towards the k."""
# message: 3 workers, k = 2: the update of step \d had 1 gradient in it; k = 2


def may_begin(worker, completed, s):
    return completed[worker] - min(completed.values()) <= s


def first_k(steps, step, k):
    if len(steps) < k or step not in steps:
        return None
    own = [place for place, of in enumerate(steps) if of == step][:k]
    return [(place in own) / len(own) for place in range(len(steps))]


def compensate(gradient, weights, backup, lambda_):
    return gradient + lambda_ * gradient * gradient * (weights - backup)


def compensate_adaptive(gradient, weights, backup, lambda_, mean_square, momentum):
    mean_square = momentum * mean_square + (1 - momentum) * gradient * gradient
    strength = lambda_ / (mean_square + 1e-7).sqrt()
    return gradient + strength * gradient * gradient * (weights - backup), mean_square
