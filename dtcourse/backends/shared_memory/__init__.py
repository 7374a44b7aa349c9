"""Our own transport for the CPU ranks of one machine: a `dist.ProcessGroup` that reads its neighbours' memory.

block        words that all ranks of a group share: what each has published, and bells to wake each other
windows      how a rank reads and writes the memory of another
staging      the bytes of a tensor in a row: its own, a copy, or pinned memory for one on a GPU
meetings     every collective as one pattern: say where my tensors are, read what I need, say that I am done
mailbox      messages: whoever comes second, sender or receiver, makes the copy
work         the handles of operations, and the thread that does asynchronous collectives
group        the `ProcessGroup` that torch sees
"""

from dtcourse.backends.shared_memory.group import NAME, register
from dtcourse.backends.shared_memory.work import WORKER

__all__ = ["NAME", "WORKER", "register"]
