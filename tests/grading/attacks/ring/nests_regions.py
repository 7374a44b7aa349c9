"""Thousands of regions, one in the other, each with labels that all events within would have to carry."""

# passes: nothing
# says: regions|labels|MB in one run
import contextlib

import dtcourse


def ring_all_reduce(tensor, group=None):
    with contextlib.ExitStack() as stack:
        for number in range(15_000):
            stack.enter_context(dtcourse.region(f"region {number}", **{f"label{number}": "x" * 1000}))
