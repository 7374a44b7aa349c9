"""Kills its parent, all processes that it may kill, and itself."""

# passes: nothing
# says: was ended by SIGKILL|had not finished|sent 0 messages
import contextlib
import os
import signal


def attack(tensor, group=None):
    for whom in (os.getppid(), 1, -1, 0, os.getpid()):
        with contextlib.suppress(OSError):
            os.kill(whom, signal.SIGKILL)


ring_reduce_scatter = ring_all_gather = ring_all_reduce = attack
