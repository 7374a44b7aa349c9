"""A million marks with a megabyte of words each."""

# passes: nothing
# says: labels|MB in one run|more than 20,000 things|what came from it
import dtcourse


def ring_all_reduce(tensor, group=None):
    for number in range(10**6):
        dtcourse.mark("x" * 1000, words="x" * 10**6, number=number)
