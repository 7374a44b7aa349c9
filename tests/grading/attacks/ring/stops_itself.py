"""Stands still without a sign: SIGSTOP."""

# passes: nothing
# says: had not finished after
import os
import signal


def ring_all_reduce(tensor, group=None):
    os.kill(os.getpid(), signal.SIGSTOP)
