"""Three are written, the last one is still the stub."""
# message: not written yet: compensate_adaptive


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
    raise NotImplementedError("not written yet: compensate_adaptive")
