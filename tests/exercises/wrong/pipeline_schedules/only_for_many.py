"""Only for as many micro-batches as stages, or more."""
# message: one_f_one_b on 4 ranks, 1 micro-batch: rank 0 does F1; the micro-batches are 0 to M-1 = 0


def gpipe(rank, stages, microbatches):
    return [("F", m) for m in range(microbatches)] + [("B", m) for m in range(microbatches)]


def one_f_one_b(rank, stages, microbatches):
    ahead = stages - 1 - rank
    actions = [("F", m) for m in range(ahead)]
    for m in range(microbatches - ahead):
        actions += [("F", m + ahead), ("B", m)]
    return actions + [("B", m) for m in range(microbatches - ahead, microbatches)]
