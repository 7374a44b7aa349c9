"""The kernel's own list of what a jailed process may not even ask for: a seccomp filter, which it installs itself.

Nothing here is needed to compute and to talk through a socket that is open already. What is refused raises
PermissionError in the process that asks. Imports the standard library alone, and touches only its own process.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys

# name -> number on x86_64 and on aarch64; None: there is no such call
_REFUSED: dict[str, tuple[int | None, int | None]] = {
    # processes: threads are clones of another kind, see below
    "fork": (57, None), "vfork": (58, None), "execve": (59, 221), "execveat": (322, 281),
    # looking into others
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "pidfd_getfd": (438, 438),
    "kcmp": (312, 272), "pidfd_open": (434, 434), "pidfd_send_signal": (424, 424), "process_madvise": (440, 440),
    # ways to another rank that are not the grader: sockets, memory, queues, locks on files that both can read
    "socket": (41, 198), "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194),
    "shmat": (30, 196), "msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180), "flock": (73, 32),
    "inotify_init": (253, None), "inotify_init1": (294, 26), "fanotify_init": (300, 262), "keyctl": (250, 219),
    "add_key": (248, 217), "request_key": (249, 218),
    "bind": (49, 200), "connect": (42, 203), "listen": (50, 201), "accept": (43, 202), "accept4": (288, 242),
    # what of a file lies in memory: all ranks read the same libraries
    "mincore": (27, 232), "cachestat": (451, 451), "preadv2": (327, 286), "fadvise64": (221, 223),
    "readahead": (187, 213),
    # parts of the kernel that nobody needs here
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "unshare": (272, 97),
    "setns": (308, 268), "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "open_by_handle_at": (304, 265), "personality": (135, 92), "modify_ldt": (154, None), "fsopen": (430, 430),
    "open_tree": (428, 428), "move_mount": (429, 429), "mount_setattr": (442, 442),
}  # fmt: skip
# calls that do many things: those that a process may ask for; fcntl could lock and watch files that other ranks see
_GRANTED = {
    "fcntl": (72, 25, (0, 1, 2, 3, 4, 1030, 1031, 1032)),  # copies of a descriptor, its flags, the size of a pipe
    "ioctl": (16, 29, (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)),  # a terminal? how much is there? may it block?
}
_CLONE, _CLONE3 = (56, 220), 435
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column above, and the kernel's name

_LOAD, _EQUAL, _AT_LEAST, _HAS_BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT, _SECOND_ARGUMENT = 0, 4, 16, 24  # where they lie in what the filter sees
_ALLOW, _ERROR, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_THREAD = 0x00010000  # the flag of a clone that makes a thread
_OTHER_NUMBERS = 0x40000000  # x86_64 has a second set of calls from here on
_SET_SECCOMP, _MODE_FILTER = 22, 2


def install() -> str | None:
    """From now on, for this process and for ever. What kept it from being installed, or None."""
    machine = os.uname().machine
    if sys.platform != "linux" or machine not in _ARCHITECTURES:
        return f"there is no list for {machine}"
    program = _program(*_ARCHITECTURES[machine])
    code = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    if ctypes.CDLL(None, use_errno=True).prctl(_SET_SECCOMP, _MODE_FILTER, ctypes.c_char_p(header), 0, 0):
        return os.strerror(ctypes.get_errno())
    return None


def _program(column: int, architecture: int) -> bytes:
    refuse, absent = _ERROR | errno.EPERM, _ERROR | errno.ENOSYS
    steps = [
        (_LOAD, 0, 0, _ARCHITECTURE), (_EQUAL, 1, 0, architecture), (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER), (_AT_LEAST, 0, 1, _OTHER_NUMBERS), (_RETURN, 0, 0, refuse),
        (_EQUAL, 0, 1, _CLONE3), (_RETURN, 0, 0, absent),  # its flags cannot be seen; libraries then use clone
    ]  # fmt: skip
    for numbers in _REFUSED.values():
        if (number := numbers[column]) is not None:
            steps += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, refuse)]
    for *numbers, granted in _GRANTED.values():
        steps += [(_EQUAL, 0, len(granted) + 3, numbers[column]), (_LOAD, 0, 0, _SECOND_ARGUMENT)]
        steps += [(_EQUAL, len(granted) - place, 0, wish) for place, wish in enumerate(granted)]
        steps += [(_RETURN, 0, 0, refuse), (_RETURN, 0, 0, _ALLOW)]
    steps += [
        (_EQUAL, 1, 0, _CLONE[column]), (_RETURN, 0, 0, _ALLOW),
        (_LOAD, 0, 0, _FIRST_ARGUMENT), (_HAS_BITS, 1, 0, _THREAD), (_RETURN, 0, 0, refuse),
        (_RETURN, 0, 0, _ALLOW),
    ]  # fmt: skip
    return b"".join(struct.pack("HBBI", *step) for step in steps)
