"""The last rank goes back from its last activation, the others from their first."""
# message: it takes the time of 24 forwards, .*; GPipe takes 18, .*\nrank 2 does B3 where GPipe does B0


def gpipe(rank, stages, microbatches):
    backwards = [("B", m) for m in range(microbatches)]
    return [("F", m) for m in range(microbatches)] + (backwards[::-1] if rank == stages - 1 else backwards)


def one_f_one_b(rank, stages, microbatches):
    ahead = min(stages - 1 - rank, microbatches)
    actions = [("F", m) for m in range(ahead)]
    for m in range(microbatches - ahead):
        actions += [("F", m + ahead), ("B", m)]
    return actions + [("B", m) for m in range(microbatches - ahead, microbatches)]
