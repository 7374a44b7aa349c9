"""The rules are methods of objects in a file beside this one."""

from rules import Compensation, first, slowest


def may_begin(worker, completed, s):
    return completed[worker] - slowest(completed) in range(s + 1)


def first_k(steps, step, k):
    return first(k, [of == step for of in steps])


def compensate(gradient, weights, backup, lambda_):
    return Compensation(weights, backup)(gradient, lambda_)


def compensate_adaptive(gradient, weights, backup, lambda_, mean_square, momentum):
    mean_square = mean_square.lerp(gradient * gradient, 1 - momentum)
    return Compensation(weights, backup)(gradient, lambda_ * (mean_square + 1e-7).rsqrt()), mean_square
