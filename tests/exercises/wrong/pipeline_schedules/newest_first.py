"""The backward of the newest activation instead of the oldest."""
# message: rank 1 does B1 where 1F1B does B0: the backwards go from micro-batch 0 to the last


def gpipe(rank, stages, microbatches):
    return [("F", m) for m in range(microbatches)] + [("B", m) for m in range(microbatches)]


def one_f_one_b(rank, stages, microbatches):
    ahead = min(stages - 1 - rank, microbatches)
    actions = [("F", m) for m in range(ahead)]
    for m in range(ahead, microbatches):
        actions += [("F", m), ("B", m)]
    return actions + [("B", m) for m in reversed(range(ahead))]
