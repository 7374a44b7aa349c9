"""No warm-up: forward and backward in turn from the start."""
# message: rank 0 does B0 where 1F1B does F1: its first backward comes after 3 forwards, not after 1


def gpipe(rank, stages, microbatches):
    return [("F", m) for m in range(microbatches)] + [("B", m) for m in range(microbatches)]


def one_f_one_b(rank, stages, microbatches):
    return [(kind, m) for m in range(microbatches) for kind in "FB"]
