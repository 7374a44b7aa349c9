"""Two forwards, then two backwards in turn."""
# message: rank 0 keeps 4 activations during F3; (.*\n)*  rank 2  \.\. \.\. F0 F1 B0--- B1--- F2


def gpipe(rank, stages, microbatches):
    return [("F", m) for m in range(microbatches)] + [("B", m) for m in range(microbatches)]


def one_f_one_b(rank, stages, microbatches):
    ahead = min(stages - 1 - rank, microbatches)
    actions = [("F", m) for m in range(ahead)]
    for m in range(0, microbatches - ahead, 2):
        pair = range(m, min(m + 2, microbatches - ahead))
        actions += [("F", k + ahead) for k in pair] + [("B", k) for k in pair]
    return actions + [("B", m) for m in range(microbatches - ahead, microbatches)]
