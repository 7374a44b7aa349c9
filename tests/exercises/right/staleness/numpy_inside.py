"""NumPy does the work; it prints, too."""

import numpy as np
import torch


def may_begin(worker, completed, s):
    print(f"worker {worker} asks, {completed}")
    return np.array(list(completed.values())).min() >= completed[worker] - s


def first_k(steps, step, k):
    own = np.flatnonzero(np.array(steps, dtype=int) == step)[:k]
    shares = np.zeros(len(steps))
    shares[own] = 1 / k
    return shares.tolist() if len(own) == k else None


def compensate(gradient, weights, backup, lambda_):
    g, w, w_bak = (tensor.numpy() for tensor in (gradient, weights, backup))
    return torch.from_numpy(np.asarray(g + lambda_ * g * g * (w - w_bak), dtype=g.dtype))


def compensate_adaptive(gradient, weights, backup, lambda_, mean_square, momentum):
    g, before = gradient.numpy(), mean_square.numpy()
    ms = np.asarray(momentum * before + (1 - momentum) * g * g, dtype=g.dtype)
    applied = g + lambda_ / np.sqrt(ms + 1e-7) * g * g * (weights - backup).numpy()
    return torch.from_numpy(np.asarray(applied, dtype=g.dtype)), torch.from_numpy(ms)
