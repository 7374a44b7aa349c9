"""Idle times are in the list."""
# message: raised TypeError: None is in its list, and is no action


def gpipe(rank, stages, microbatches):
    forwards, backwards = ([(kind, m) for m in range(microbatches)] for kind in "FB")
    return [None] * rank + forwards + [None] * (stages - 1 - rank) + backwards


def one_f_one_b(rank, stages, microbatches):
    ahead = min(stages - 1 - rank, microbatches)
    actions = [("F", m) for m in range(ahead)]
    for m in range(microbatches - ahead):
        actions += [("F", m + ahead), ("B", m)]
    return actions + [("B", m) for m in range(microbatches - ahead, microbatches)]
