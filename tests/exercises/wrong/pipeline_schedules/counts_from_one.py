"""The micro-batches are counted from 1."""
# message: gpipe on 3 ranks, 4 micro-batches: rank 0 does F4; the micro-batches are 0 to M-1 = 3


def gpipe(rank, stages, microbatches):
    return [(kind, m) for kind in "FB" for m in range(1, microbatches + 1)]


def one_f_one_b(rank, stages, microbatches):
    ahead = min(stages - 1 - rank, microbatches)
    actions = [("F", m) for m in range(ahead)]
    for m in range(microbatches - ahead):
        actions += [("F", m + ahead), ("B", m)]
    return actions + [("B", m) for m in range(microbatches - ahead, microbatches)]
