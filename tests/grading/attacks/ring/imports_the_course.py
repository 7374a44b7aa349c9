"""Calls the ring of the course."""

# passes: nothing
# says: dtcourse.collectives is not there when an exercise is graded: write it yourself
from dtcourse.collectives.ring import ring_all_gather, ring_all_reduce, ring_reduce_scatter  # noqa: F401


def attack(tensor, group=None):
    pass
