"""Returns an object that runs code where it is unpacked."""

# passes: nothing
# says: which cannot be sent back \(a Code\)
import os


class Code:
    def __reduce__(self):
        return os.system, ("touch /tmp/was_here",)


def attack(tensor, group=None):
    return Code()


ring_reduce_scatter = ring_all_gather = ring_all_reduce = attack
