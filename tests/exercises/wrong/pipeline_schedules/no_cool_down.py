"""The cool-down is missing."""
# message: one_f_one_b .*: rank 0 never does B2, B3: after its last forward, they are still to come


def gpipe(rank, stages, microbatches):
    return [("F", m) for m in range(microbatches)] + [("B", m) for m in range(microbatches)]


def one_f_one_b(rank, stages, microbatches):
    ahead = min(stages - 1 - rank, microbatches)
    actions = [("F", m) for m in range(ahead)]
    for m in range(microbatches - ahead):
        actions += [("F", m + ahead), ("B", m)]
    return actions
