"""Sends tensors of negative, endless and untold sizes, of dtypes that there are not, and a time that is no number."""

# passes: nothing
# says: what came from it is not what a rank sends
import gc

import torch.distributed as dist

from dtcourse.grading.sandbox.wire import pack

CLAIMS = {"line": None, "control": False, "arguments": 0, "tag": 0, "group": 0, "peer": 0, "operation": 10**6}


def ring_all_reduce(tensor, group=None):
    grader = next(thing for thing in gc.get_objects() if type(thing).__name__ == "Grader")
    impossible = [
        {"do": "recv", **CLAIMS, "outputs": [["float32", [1 << 62, 1 << 62]]]},
        {"do": "send", **CLAIMS, "tensors": [["float32", [-1]]]},
        {"do": "send", **CLAIMS, "tensors": [["object", [1]]]},
        {"do": "send", **CLAIMS, "tensors": [["int64", [1] * 100]]}, {"do": ["return"]},
        {"do": "send", **CLAIMS, "tensors": [["int64", [10**6]]]}, {"do": "recv", **CLAIMS, "outputs": {"0": 1}},
        {"do": "mark", "name": 7, "labels": [], "line": {"file": 1}}, {"do": "return", "value": {"tensor": -1}},
    ]  # fmt: skip
    grader.send(pack(impossible[dist.get_rank() if dist.get_world_size() < 4 else 3 + dist.get_rank()]))
    while True:
        pass
