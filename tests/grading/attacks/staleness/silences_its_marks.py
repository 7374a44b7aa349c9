"""Allows everything, and sees to it that the server marks nothing of what it then does."""

# passes: nothing
# says: sent rank \d parameters for step|are not version|has not written
import sys


def silent(*args, **kwargs):
    pass


def quiet():
    for name, module in list(sys.modules.items()):
        if name.startswith("dtcourse.") and hasattr(module, "mark"):
            module.mark = silent


def may_begin(worker, completed, s):
    quiet()
    return True


def first_k(steps, step, k):
    quiet()
    return [1 / len(steps)] * len(steps)


def compensate(gradient, weights, backup, lambda_):
    quiet()
    return gradient


def compensate_adaptive(gradient, weights, backup, lambda_, mean_square, momentum):
    quiet()
    return gradient, mean_square
