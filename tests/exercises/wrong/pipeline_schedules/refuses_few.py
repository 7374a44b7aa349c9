"""Refuses fewer micro-batches than stages."""
# message: one_f_one_b on 4 ranks, 1 micro-batch: rank . raised ValueError: 1F1B needs at least


def gpipe(rank, stages, microbatches):
    return [("F", m) for m in range(microbatches)] + [("B", m) for m in range(microbatches)]


def one_f_one_b(rank, stages, microbatches):
    if microbatches < stages:
        raise ValueError("1F1B needs at least as many micro-batches as stages")
    ahead = stages - 1 - rank
    actions = [("F", m) for m in range(ahead)]
    for m in range(microbatches - ahead):
        actions += [("F", m + ahead), ("B", m)]
    return actions + [("B", m) for m in range(microbatches - ahead, microbatches)]
