"""Takes the last backward for granted: one stage alone is forgotten."""
# message: one_f_one_b on 1 rank, 4 micro-batches: rank 0 keeps 2 activations during F1; .* = 1 at most


def gpipe(rank, stages, microbatches):
    return [("F", m) for m in range(microbatches)] + [("B", m) for m in range(microbatches)]


def one_f_one_b(rank, stages, microbatches):
    ahead = min(max(stages - 1 - rank, int(stages == 1)), microbatches)
    actions = [("F", m) for m in range(ahead)]
    for m in range(microbatches - ahead):
        actions += [("F", m + ahead), ("B", m)]
    return actions + [("B", m) for m in range(microbatches - ahead, microbatches)]
