"""The lists of all ranks."""
# message: raised TypeError: \[\('F', 0\), .* is in its list, and is no action\n(.*\n)*Each rank asks


def gpipe(rank, stages, microbatches):
    return [[(kind, m) for kind in "FB" for m in range(microbatches)] for _ in range(stages)]


def one_f_one_b(rank, stages, microbatches):
    ahead = min(stages - 1 - rank, microbatches)
    actions = [("F", m) for m in range(ahead)]
    for m in range(microbatches - ahead):
        actions += [("F", m + ahead), ("B", m)]
    return actions + [("B", m) for m in range(microbatches - ahead, microbatches)]
