"""Asks to be root, for other namespaces and file systems, and out of its root by a descriptor."""

# passes: test_one_rank
# says: sent 0 messages
import contextlib
import ctypes
import os
import resource
import socket
import stat

LIBC = ctypes.CDLL(None)
NEW_USER, NEW_NETWORK, BIND = 0x10000000, 0x40000000, 4096


def attack(tensor, group=None):
    ways = [
        name
        for name, answer in {
            "unshare": LIBC.unshare(NEW_USER), "network": LIBC.unshare(NEW_NETWORK), "setns": LIBC.setns(0, 0),
            "mount": LIBC.mount(b"/", b"/tmp", None, BIND, None), "umount": LIBC.umount2(b"/submission", 2),
            "tracing": LIBC.personality(0x0040000), "keep": LIBC.prctl(38, 0, 0, 0, 0),
        }.items()
        if answer == 0
    ]  # fmt: skip
    for name, way in {
        "setuid": lambda: os.setresuid(0, 0, 0), "setgroups": lambda: os.setgroups([0]),
        "chroot": lambda: os.chroot("/tmp"),
        "files": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (10**6, 10**6)),
        "processes": lambda: resource.setrlimit(resource.RLIMIT_NPROC, (10**6, 10**6)),
        "core": lambda: resource.setrlimit(resource.RLIMIT_CORE, (10**6, 10**6)),
        "device": lambda: os.mknod("/tmp/disk", 0o666 | stat.S_IFBLK, os.makedev(8, 0)),
        "write": lambda: os.chmod("/submission/ring.py", 0o777), "link": lambda: os.link("/dev/null", "/tmp/null"),
        "remove": lambda: os.remove("/submission/ring.py"), "host": lambda: socket.sethostname("mine"),
        "priority": lambda: os.nice(-5), "time": lambda: __import__("time").clock_settime(0, 0),
    }.items():  # fmt: skip
        with contextlib.suppress(OSError, ValueError):
            way()
            ways.append(name)
    if ways:
        raise RuntimeError(f"these are ways: {ways}")


ring_reduce_scatter = ring_all_gather = ring_all_reduce = attack
