"""In turn, but the backward before the forward."""
# message: rank 2 does B0 before F0: a backward needs the activation that its own forward leaves


def gpipe(rank, stages, microbatches):
    return [("F", m) for m in range(microbatches)] + [("B", m) for m in range(microbatches)]


def one_f_one_b(rank, stages, microbatches):
    ahead = min(stages - 1 - rank, microbatches)
    actions = [("F", m) for m in range(ahead)]
    for m in range(microbatches - ahead):
        actions += [("B", m), ("F", m + ahead)]
    return actions + [("B", m) for m in range(microbatches - ahead, microbatches)]
