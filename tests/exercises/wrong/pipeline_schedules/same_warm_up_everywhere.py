"""Every rank warms up like the first."""
# message: rank 1 keeps 3 activations during F2; 1F1B keeps min\(P-s, M\) = 2 at most


def gpipe(rank, stages, microbatches):
    return [("F", m) for m in range(microbatches)] + [("B", m) for m in range(microbatches)]


def one_f_one_b(rank, stages, microbatches):
    ahead = min(stages - 1, microbatches)
    actions = [("F", m) for m in range(ahead)]
    for m in range(microbatches - ahead):
        actions += [("F", m + ahead), ("B", m)]
    return actions + [("B", m) for m in range(microbatches - ahead, microbatches)]
