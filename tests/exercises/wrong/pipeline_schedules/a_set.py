"""A set, which has no order."""
# message: raised TypeError: it returned \{\('.', \d\), .*\}, which is no list of actions


def gpipe(rank, stages, microbatches):
    return {(kind, m) for kind in "FB" for m in range(microbatches)}


def one_f_one_b(rank, stages, microbatches):
    ahead = min(stages - 1 - rank, microbatches)
    actions = [("F", m) for m in range(ahead)]
    for m in range(microbatches - ahead):
        actions += [("F", m + ahead), ("B", m)]
    return actions + [("B", m) for m in range(microbatches - ahead, microbatches)]
