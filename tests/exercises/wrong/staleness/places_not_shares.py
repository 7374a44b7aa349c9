"""Returns the places of those that are applied."""
# message: for step 0 was dropped; it was one of the first of its step: .* returned \[0\]


def may_begin(worker, completed, s):
    return completed[worker] - min(completed.values()) <= s


def first_k(steps, step, k):
    applied = [place for place, of in enumerate(steps) if of == step][:k]
    return applied if len(applied) == k else None


def compensate(gradient, weights, backup, lambda_):
    return gradient + lambda_ * gradient * gradient * (weights - backup)


def compensate_adaptive(gradient, weights, backup, lambda_, mean_square, momentum):
    mean_square = momentum * mean_square + (1 - momentum) * gradient * gradient
    strength = lambda_ / (mean_square + 1e-7).sqrt()
    return gradient + strength * gradient * gradient * (weights - backup), mean_square
