"""One loop for both: how many activations may a rank keep?"""


def as_long_as(most, microbatches):
    actions, begun, ended = [], 0, 0
    while ended < microbatches:
        if begun < microbatches and begun - ended < most:
            actions.append(["F", begun])
            begun += 1
        else:
            actions.append(["B", ended])
            ended += 1
    return actions


def gpipe(rank, stages, microbatches):
    return as_long_as(microbatches, microbatches)


def one_f_one_b(rank, stages, microbatches):
    return as_long_as(stages - rank, microbatches)
