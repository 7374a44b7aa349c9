"""Generators: an action at a time."""


def gpipe(rank, stages, microbatches):
    for kind in ("F", "B"):
        for microbatch in range(microbatches):
            yield kind, microbatch


def one_f_one_b(rank, stages, microbatches):
    forwards = 0
    for backward in range(microbatches):
        while forwards < min(backward + stages - rank, microbatches):
            yield "F", forwards
            forwards += 1
        yield "B", backward
