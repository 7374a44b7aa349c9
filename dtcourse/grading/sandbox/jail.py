"""What confines a process that runs somebody else's code, as far as this machine's kernel can.

On Linux a jailed process sees a file system of its own (Python, its libraries and the submission, all read-only, and a
small /tmp), no other process, no network, no shared memory; it may not make processes or files beyond small limits, and
it dies with the process that holds it. Where something of that cannot be had, `weaknesses` says so in a sentence.

Runs in a fork of the keeper. Imports the standard library alone, and touches only the process that it is called in.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import shutil
import signal
import struct
import sys
import sysconfig
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import NoReturn

from dtcourse.grading.sandbox import filter

SUBMISSION = "/submission"  # where the submission's folder lies in a jail
MEMORY = 2 << 30  # bytes, besides what Python and torch take
SCRATCH = 32 << 20  # bytes of files in /tmp
LARGEST_SUBMISSION = 16 << 20  # bytes of its files
LARGEST_FILE = 32 << 20
OPEN_FILES = 128
PROCESSES = 64  # threads count
SECONDS_OF_CPU = 600
NOBODY = 65534

_NEWNS, _NEWUTS, _NEWIPC, _NEWUSER, _NEWPID, _NEWNET = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
_NAMESPACES = _NEWNS | _NEWUTS | _NEWIPC | _NEWPID | _NEWNET
_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REMOUNT, _BIND, _REC, _PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
_DETACH = 2
_PDEATHSIG, _SET_DUMPABLE, _NO_NEW_PRIVS = 1, 4, 38
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}

NO_NAMESPACES = (
    "this kernel gives us no namespaces ({}): a submission sees the file system, other processes and the network"
)
NO_FILTER = "this machine's system calls cannot be filtered ({}): a submission may start processes"
NOT_LINUX = "this is no Linux: a submission sees the file system, other processes and the network, with your rights"


@dataclass
class Jail:
    """`submission`: the folder that is seen as SUBMISSION. `point`: an empty folder. `user`: who to be, if root.

    `sure`: this machine can confine, as has been seen, and what cannot be confined now does not run at all.
    `namespaces`: whether to try for them; where it has been seen that they cannot be had whole, half of them do harm.
    """

    submission: str
    point: str
    user: int
    sure: bool = False
    namespaces: bool = True
    weaknesses: list[str] = field(default_factory=list)

    def run(self, keep: list[int], life: Callable[[], None]) -> NoReturn:
        """In a process of its own, confined: `life()`. This process waits, and ends as that one ended.

        `keep`: the descriptors that are left open in there. SIGTERM ends all that is in the jail, and this process.
        """
        try:
            self._hold(keep, life)
        except BaseException:
            traceback.print_exc()
        finally:  # this is a copy of the keeper: it must not go on as one
            os._exit(1)

    def _hold(self, keep: list[int], life: Callable[[], None]) -> NoReturn:
        _die_with_parent()
        self._memory = _address_space() + MEMORY
        _be_first_to_die()
        namespaces = self._enter_namespaces()
        reading, writing = os.pipe()
        init = os.fork()
        if init == 0:
            self._be_init(writing, keep, life)
        signal.signal(signal.SIGTERM, lambda *_: _kill(init))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        _close_all_but(reading)
        status = os.read(reading, 4)
        os.waitpid(init, 0)  # of a namespace, this is over when nothing in it is alive
        if not namespaces:
            self._end_what_is_left(init)
        _end_like(int.from_bytes(status, sys.byteorder) if status else signal.SIGKILL)

    def _be_init(self, writing: int, keep: list[int], life: Callable[[], None]) -> NoReturn:
        """The first process in the jail: takes in orphans, and ends with the rank, so that the kernel ends the rest."""
        os.setsid()
        self._become_nobody()
        _die_with_parent()
        rank = os.fork()
        if rank == 0:
            code = 1
            try:
                _close_all_but(*keep)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
                self._limit()
                life()
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        _close_all_but(writing)
        _protect_from_debuggers()
        while True:
            ended, status = os.wait()
            if ended == rank:
                os.write(writing, status.to_bytes(4, sys.byteorder))
                os._exit(0)

    def _end_what_is_left(self, init: int) -> None:
        """Without a namespace: the process group, and as root all processes of the jail's own user."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(init, signal.SIGKILL)
        if os.geteuid() == 0:
            killer = os.fork()
            if killer == 0:
                try:
                    os.setresuid(self.user, self.user, self.user)
                    os.kill(-1, signal.SIGKILL)  # all but itself; there may be no others
                finally:
                    os._exit(0)
            os.waitpid(killer, 0)

    # -- what it sees -------------------------------------------------------------------------------------------

    def _enter_namespaces(self) -> bool:
        if sys.platform != "linux":
            self.weaknesses.append(NOT_LINUX)
            return False
        if not self.namespaces:
            return False
        try:
            _enter()
            self._build_root()
        except OSError as problem:
            if self.sure:
                raise
            self.weaknesses.append(NO_NAMESPACES.format(problem.strerror))
            return False
        return True

    def _build_root(self) -> None:
        """A file system in memory in which only what a rank needs is to be seen, in place of the one there is."""
        _mount(None, "/", None, _REC | _PRIVATE)
        _mount("tmpfs", self.point, "tmpfs", _NOSUID | _NODEV, "size=1m,mode=755")
        os.mkdir(f"{self.point}/tmp")  # first: libraries may lie in /tmp
        _mount("tmpfs", f"{self.point}/tmp", "tmpfs", _NOSUID | _NODEV, f"size={SCRATCH},nr_inodes=1024,mode=1777")
        for path in libraries():
            self._show(path, path)
        os.mkdir(place := f"{self.point}{SUBMISSION}")
        _mount("tmpfs", place, "tmpfs", _NOSUID | _NODEV, f"size={2 * LARGEST_SUBMISSION},nr_inodes=4096,mode=755")
        copy_submission(self.submission, place)
        _mount(None, place, None, _REMOUNT | _BIND | _RDONLY | _NOSUID | _NODEV)
        for device in ("null", "zero", "full", "random", "urandom"):
            self._show(f"/dev/{device}", f"/dev/{device}", _NOSUID)
        os.chdir(self.point)
        _check(_libc.syscall(_PIVOT_ROOT[os.uname().machine], b".", b"."))
        _check(_libc.umount2(b".", _DETACH))
        os.chdir("/")
        _mount(None, "/", None, _REMOUNT | _BIND | _RDONLY | _NOSUID | _NODEV)

    def _show(self, source: str, path: str, flags: int = _NOSUID | _NODEV) -> None:
        """Let `source` be seen as `path`, read-only; a symbolic link as what it is."""
        target = self.point + path
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if os.path.islink(source):
            os.symlink(os.readlink(source), target)
            return
        if os.path.isdir(source):
            os.makedirs(target, exist_ok=True)
        else:
            os.close(os.open(target, os.O_CREAT))
        _mount(source, target, None, _BIND | _REC)
        kept = os.statvfs(target).f_flag & (_NOSUID | _NODEV | _NOEXEC)  # nobody but root may take those away
        _mount(None, target, None, _REMOUNT | _BIND | _RDONLY | flags | kept)
        if os.path.isdir(f"{source}/dtcourse"):  # the course: its solutions and its algorithms
            _mount("tmpfs", f"{target}/dtcourse", "tmpfs", _RDONLY, "size=4k")

    # -- what it may do -----------------------------------------------------------------------------------------

    def _become_nobody(self) -> None:
        if os.geteuid() == 0 and self.user:
            os.setgroups([])
            os.setresgid(self.user, self.user, self.user)
            os.setresuid(self.user, self.user, self.user)
        if sys.platform == "linux":
            _check(_libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0))
            _drop_capabilities()

    def _limit(self) -> None:
        """Limits that nothing in there can lift again."""
        limits = {
            resource.RLIMIT_FSIZE: LARGEST_FILE,
            resource.RLIMIT_NOFILE: OPEN_FILES,
            resource.RLIMIT_CPU: SECONDS_OF_CPU,
            resource.RLIMIT_CORE: 0,
        }
        if sys.platform == "linux":  # elsewhere the one is refused, and the other counts all processes of the user
            limits |= {resource.RLIMIT_AS: self._memory, resource.RLIMIT_NPROC: PROCESSES}
        for limit, most in limits.items():
            resource.setrlimit(limit, (most, most))
        if sys.platform == "linux" and (reason := filter.install()):
            if self.sure:
                raise OSError(reason)
            self.weaknesses.append(NO_FILTER.format(reason))


def copy_submission(submission: str, place: str) -> None:
    """The files of a folder, for anybody to read: who is nobody in a jail may have no right to read them elsewhere.

    Links are left out. Raises OSError if they are too large.
    """
    left = LARGEST_SUBMISSION
    for folder, folders, files in os.walk(submission):
        folders[:] = [name for name in folders if not name.startswith((".", "__pycache__"))]
        there = os.path.normpath(os.path.join(place, os.path.relpath(folder, submission)))
        os.makedirs(there, exist_ok=True)
        for name in files:
            if os.path.isfile(file := os.path.join(folder, name)) and not os.path.islink(file):
                left -= os.path.getsize(file)
                if left < 0:
                    raise OSError(errno.EFBIG, f"a submission has at most {LARGEST_SUBMISSION >> 20} MB")
                shutil.copyfile(file, os.path.join(there, name))


@cache
def libraries() -> list[str]:
    """What Python and torch may still load: folders and files, none inside another."""
    course = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    kinds = (
        "stdlib",
        "platstdlib",
        "purelib",
        "platlib",
    )  # and not the folder that all of them, or the course, may lie in
    packages = [*map(sysconfig.get_path, kinds), *sys.path]
    system = ["/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib32", "/usr/lib64", "/etc/ld.so.cache", "/etc/localtime"]
    real = [path for given in packages for path in (given, os.path.realpath(given)) if "python" in path]
    there = {path.rstrip("/") for path in (*real, *system) if os.path.exists(path)} - {course}
    return [path for path in sorted(there) if not any(path.startswith(f"{other}/") for other in there)]


# -- the kernel --------------------------------------------------------------------------------------------------------

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _enter() -> None:
    """New namespaces; as somebody without rights, in a user namespace of his own."""
    if _libc.unshare(_NAMESPACES) == 0:
        return
    user, group = os.geteuid(), os.getegid()
    _check(_libc.unshare(_NAMESPACES | _NEWUSER))
    for file, text in (("setgroups", "deny"), ("uid_map", f"{NOBODY} {user} 1"), ("gid_map", f"{NOBODY} {group} 1")):
        with open(f"/proc/self/{file}", "w") as mapping:
            mapping.write(text)


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    texts = [text.encode() if text is not None else None for text in (source, target, kind, options)]
    _check(_libc.mount(*texts[:3], ctypes.c_ulong(flags), texts[3]))


def _drop_capabilities() -> None:
    header, none = struct.pack("Ii", 0x20080522, 0), bytes(24)  # the third version of this call, for this process
    _check(_libc.capset(header, none))


def _die_with_parent() -> None:
    if sys.platform == "linux":
        _check(_libc.prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0))


def _protect_from_debuggers() -> None:
    if sys.platform == "linux":
        _libc.prctl(_SET_DUMPABLE, 0, 0, 0, 0)


def _be_first_to_die() -> None:
    """If memory runs out, this process and its children go first, and not the grader."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("1000")


def _address_space() -> int:
    """Bytes that this process has mapped."""
    with contextlib.suppress(OSError), open("/proc/self/statm") as sizes:
        return int(sizes.read().split()[0]) * resource.getpagesize()
    return 0


def _kill(process: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def _close_all_but(*keep: int) -> None:
    start = 3
    for descriptor in (*sorted(keep), 1 << 16):
        os.closerange(start, descriptor)
        start = descriptor + 1


def _end_like(status: int) -> NoReturn:
    """End as a process that left this wait status."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(status))
