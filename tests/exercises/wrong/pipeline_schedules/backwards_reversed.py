"""The backwards from the last micro-batch to the first, as in the paper's figure."""
# message: rank 2 does B3 where GPipe does B0: the backwards go from micro-batch 0 to the last\.\n


def gpipe(rank, stages, microbatches):
    return [("F", m) for m in range(microbatches)] + [("B", m) for m in reversed(range(microbatches))]


def one_f_one_b(rank, stages, microbatches):
    ahead = min(stages - 1 - rank, microbatches)
    actions = [("F", m) for m in range(ahead)]
    for m in range(microbatches - ahead):
        actions += [("F", m + ahead), ("B", m)]
    return actions + [("B", m) for m in range(microbatches - ahead, microbatches)]
