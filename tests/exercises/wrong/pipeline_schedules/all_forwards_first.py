"""That is GPipe."""
# message: rank 0 keeps 4 activations during F3; (.*\n)*  rank 0  F0 F1 F2 F3 (\.\. ){6}B0


def gpipe(rank, stages, microbatches):
    return [("F", m) for m in range(microbatches)] + [("B", m) for m in range(microbatches)]


def one_f_one_b(rank, stages, microbatches):
    return [(kind, m) for kind in "FB" for m in range(microbatches)]
