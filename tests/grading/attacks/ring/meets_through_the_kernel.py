"""Ranks look for memory, queues, keys, names and cached pages that the kernel would let them share."""

# passes: test_one_rank
# says: sent 0 messages
import contextlib
import ctypes
import mmap
import os
import socket
import tempfile

CALLS = {  # x86_64 and aarch64: name -> numbers and arguments
    "memfd_create": (319, 279, b"ring", 0), "shmget": (29, 194, 7777, 4096, 0o1666), "msgget": (68, 186, 7777, 0o1666),
    "semget": (64, 190, 7777, 1, 0o1666), "mq_open": (240, 180, b"ring", 0o102, 0o666, None), "add_key":
    (248, 217, b"user", b"ring", b"1", 1, -3), "mincore": (27, 232, 0, 0, 0), "pidfd_open": (434, 434, 1, 0),
    "cachestat": (451, 451, 0, None, None, 0), "socket": (41, 198, 1, 1, 0), "userfaultfd": (323, 282, 1),
    "inotify_init1": (294, 26, 0), "io_uring_setup": (425, 425, 1, None),
}  # fmt: skip


def granted(x86, arm, *arguments):
    number = {"x86_64": x86, "aarch64": arm}[os.uname().machine]
    return ctypes.CDLL(None).syscall(number, *arguments) >= 0


def attack(tensor, group=None):
    ways = [name for name, call in CALLS.items() if granted(*call)]
    with open(os.__file__, "rb") as file, contextlib.suppress(OSError):
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # out of memory, where another would see it
        ways.append("posix_fadvise")
    with open(os.__file__, "rb") as file, contextlib.suppress(OSError):
        os.preadv(file.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT)
        ways.append("preadv2")
    with contextlib.suppress(OSError):
        socket.socket(fileno=os.dup(3)).bind("\0ring")  # in the network of the grader, whose socket it is
        ways.append("bind")
    with tempfile.TemporaryFile() as file, mmap.mmap(file.fileno() if file.truncate(1) else -1, 1):
        pass  # shared, but with nobody
    if ways:
        raise RuntimeError(f"these are ways: {ways}")


ring_reduce_scatter = ring_all_gather = ring_all_reduce = attack
