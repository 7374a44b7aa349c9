"""Closes the socket to the grader, and goes on alone."""

# passes: nothing
# says: process of rank \d|has died|was ended
import os
import time


def ring_all_reduce(tensor, group=None):
    os.closerange(3, 64)
    time.sleep(1000)
