"""A forward and a backward in each step, as long as there are any: the backwards never stop in time."""
# message: rank 1 does B4; the micro-batches are 0 to M-1 = 3


def gpipe(rank, stages, microbatches):
    return [(kind, m) for kind in "FB" for m in range(microbatches)]


def one_f_one_b(rank, stages, microbatches):
    actions = []
    for step in range(microbatches + stages):
        if step < microbatches:
            actions.append(("F", step))
        if step >= stages - rank:
            actions.append(("B", step - (stages - rank)))
    return actions
