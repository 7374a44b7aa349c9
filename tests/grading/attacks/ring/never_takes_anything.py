"""Asks for much, and never takes what it is given."""

# passes: nothing
# says: does not take what it is sent|have sent more than 128 MB|had not finished
import gc

import torch


def attack(tensor, group=None):
    grader = next(thing for thing in gc.get_objects() if type(thing).__name__ == "Grader")
    claims = {"line": None, "control": False, "arguments": 0, "group": 0, "async": True, "op": "all_reduce"}
    large = torch.ones(1 << 20)
    for number in range(10**6, 10**6 + 10**4):
        words = {"do": "collective", "operation": number, "outputs": [["float32", [1 << 20]]], **claims}
        grader.tell(words, [large])
        grader.tell({"do": "wait", "operation": number, "aside": False, "seconds": 0, "question": number})


ring_reduce_scatter = ring_all_gather = ring_all_reduce = attack
