"""Fills the record with marks, and with ever longer words."""

# passes: nothing
# says: MB of labels|more than 20,000 things|more than 128 MB|operations that wait|had not finished
import dtcourse


def attack(tensor, group=None):
    words = "x"
    while True:
        dtcourse.mark("here", words=words)
        words = (words + words)[: 1 << 20]


ring_reduce_scatter = ring_all_gather = ring_all_reduce = attack
