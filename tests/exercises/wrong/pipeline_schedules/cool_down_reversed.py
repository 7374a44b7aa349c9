"""The cool-down goes back from the last micro-batch."""
# message: rank 0 does B3 where 1F1B does B2: the backwards go from micro-batch 0 to the last


def gpipe(rank, stages, microbatches):
    return [("F", m) for m in range(microbatches)] + [("B", m) for m in range(microbatches)]


def one_f_one_b(rank, stages, microbatches):
    ahead = min(stages - 1 - rank, microbatches)
    actions = [("F", m) for m in range(ahead)]
    for m in range(microbatches - ahead):
        actions += [("F", m + ahead), ("B", m)]
    return actions + [("B", m) for m in reversed(range(microbatches - ahead, microbatches))]
