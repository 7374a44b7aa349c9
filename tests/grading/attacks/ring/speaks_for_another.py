"""Asks in groups that it is not in, of ranks that there are not, and for what it has not begun."""

# passes: nothing
# says: what came from it is not what a rank sends
import gc

import torch
import torch.distributed as dist


def attack(tensor, group=None):
    grader = next(thing for thing in gc.get_objects() if type(thing).__name__ == "Grader")
    claims = {"line": None, "control": False, "arguments": 0, "tag": 0, "operation": 10**6}
    kinds = [
        {"do": "send", "group": 0, "peer": -3}, {"do": "send", "group": 9, "peer": 0}, {"do": "wait", "operation": 77},
        {"do": "__init__"}, {"do": "collective", "op": "exec", "group": 0, "outputs": []},
    ]  # fmt: skip
    grader.tell({**claims, **kinds[dist.get_rank() % len(kinds)]}, [torch.ones(1)])
    while True:
        pass


ring_reduce_scatter = ring_all_gather = ring_all_reduce = attack
