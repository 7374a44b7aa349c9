"""Writes frames of its own into whatever is open, and sends descriptors along."""

# passes: nothing
# says: what came from it is not what a rank sends|sent 0 messages|had not finished
import contextlib
import json
import os
import socket
import struct

import torch.distributed as dist

WORDS = json.dumps({"do": "return", "value": {"tensor": 0}, "arguments": 0, "tensors": []}).encode()


def ring_all_reduce(tensor, group=None):
    for descriptor in range(1, 16):
        with contextlib.suppress(OSError):
            os.write(descriptor, struct.pack("!II", len(WORDS), 0) + WORDS)
        with contextlib.suppress(OSError):
            there = socket.socket(fileno=os.dup(descriptor))
            socket.send_fds(there, [b"\0"], [0, 1, descriptor])
            there.send(b"!", socket.MSG_OOB)
    dist.barrier()
