"""F0 as one word."""
# message: raised TypeError: 'F0' is in its list, and is no action


def gpipe(rank, stages, microbatches):
    return [f"{kind}{m}" for kind in "FB" for m in range(microbatches)]


def one_f_one_b(rank, stages, microbatches):
    ahead = min(stages - 1 - rank, microbatches)
    actions = [("F", m) for m in range(ahead)]
    for m in range(microbatches - ahead):
        actions += [("F", m + ahead), ("B", m)]
    return actions + [("B", m) for m in range(microbatches - ahead, microbatches)]
