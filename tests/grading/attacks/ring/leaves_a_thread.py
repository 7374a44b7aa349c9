"""A thread that never ends, in each run, and says things when its function has returned."""

# passes: test_one_rank
# says: sent 0 messages|had not finished
import threading
import time

import torch.distributed as dist


def attack(tensor, group=None):
    threading.Thread(target=busy, args=(tensor, group), daemon=True).start()


def busy(tensor, group):
    while True:
        try:
            dist.isend(tensor, 0, group=group)
        except Exception:
            time.sleep(0.001)


ring_reduce_scatter = ring_all_gather = ring_all_reduce = attack
