"""Each forward with its backward after it: no pipeline at all."""
# message: rank 0 does B0 where GPipe does F1: its first backward comes after 4 forwards, not after 1


def gpipe(rank, stages, microbatches):
    return [(kind, m) for m in range(microbatches) for kind in "FB"]


def one_f_one_b(rank, stages, microbatches):
    ahead = min(stages - 1 - rank, microbatches)
    actions = [("F", m) for m in range(ahead)]
    for m in range(microbatches - ahead):
        actions += [("F", m + ahead), ("B", m)]
    return actions + [("B", m) for m in range(microbatches - ahead, microbatches)]
