"""How a rank reads and writes the memory of another rank of this machine.

`Direct` asks the kernel to copy between two processes: one copy, and nobody has to hold still for it. Where the
kernel does not allow that, `Staged` keeps what others shall see in files that all ranks map: two copies.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from abc import ABC, abstractmethod
from itertools import count

import torch

_MOST = 1 << 30  # bytes of one call to the kernel


class Windows(ABC):
    """Addresses mean something only together with the rank whose memory they are in."""

    name: str

    @abstractmethod
    def open(self, tensor: torch.Tensor, filled: bool) -> int:
        """Let others reach a contiguous tensor; the address. `filled`: they shall read what is in it."""

    @abstractmethod
    def update(self, address: int, part: torch.Tensor, offset: int) -> None:
        """This rank has changed what stands `offset` bytes into an open tensor to `part`."""

    @abstractmethod
    def close(self, address: int, tensor: torch.Tensor, written: bool) -> None:
        """Nobody needs it any more. `written`: another rank has written to it."""

    @abstractmethod
    def read(self, rank: int, address: int, into: torch.Tensor, offset: int = 0) -> None:
        """Copy from another rank, from byte `offset` on, into a contiguous tensor."""

    @abstractmethod
    def write(self, rank: int, address: int, source: torch.Tensor) -> None:
        """Copy a contiguous tensor to another rank."""

    @abstractmethod
    def end(self) -> None:
        """The group is over: leave nothing behind."""


class _Iovec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def _kernel_copy(name: str):  # noqa: ANN202 - a C function
    function = getattr(ctypes.CDLL(None, use_errno=True), name)
    pointer = ctypes.POINTER(_Iovec)
    function.argtypes = [ctypes.c_int, pointer, ctypes.c_ulong, pointer, ctypes.c_ulong, ctypes.c_ulong]
    function.restype = ctypes.c_ssize_t
    return function


class Direct(Windows):
    """process_vm_readv and process_vm_writev (Linux)."""

    name = "process_vm_readv"

    def __init__(self, pids: list[int]) -> None:
        self._pids = pids
        self._readv, self._writev = _kernel_copy("process_vm_readv"), _kernel_copy("process_vm_writev")

    @staticmethod
    def possible(pids: list[int], addresses: list[int]) -> bool:
        """Whether this process may read a byte of each; `allow` has to have been called there.

        The kernel asks for permission first, and then whether it can: memory that a GPU's driver made may be refused.
        """
        if sys.platform != "linux" or os.environ.get("DTCOURSE_WINDOWS") == "staged":
            return False
        probe, readv = ctypes.create_string_buffer(1), _kernel_copy("process_vm_readv")
        here = _Iovec(ctypes.addressof(probe), 1)
        return all(
            readv(pid, here, 1, _Iovec(address, 1), 1, 0) == 1 for pid, address in zip(pids, addresses, strict=True)
        )

    @staticmethod
    def allow() -> None:
        """Let the other ranks read this one, where otherwise only a parent may: all are children of one process."""
        if sys.platform == "linux":
            set_ptracer = 0x59616D61
            ctypes.CDLL(None).prctl(set_ptracer, ctypes.c_ulong(os.getppid()), 0, 0, 0)

    def open(self, tensor: torch.Tensor, filled: bool) -> int:
        return tensor.data_ptr()

    def update(self, address: int, part: torch.Tensor, offset: int) -> None:
        pass  # the others see it

    def close(self, address: int, tensor: torch.Tensor, written: bool) -> None:
        pass

    def read(self, rank: int, address: int, into: torch.Tensor, offset: int = 0) -> None:
        self._copy(self._readv, rank, address + offset, into)

    def write(self, rank: int, address: int, source: torch.Tensor) -> None:
        self._copy(self._writev, rank, address, source)

    def end(self) -> None:
        pass

    def _copy(self, call, rank: int, address: int, mine: torch.Tensor) -> None:  # noqa: ANN001
        left, here = mine.numel() * mine.element_size(), mine.data_ptr()
        while left:
            size = min(left, _MOST)
            done = call(self._pids[rank], _Iovec(here, size), 1, _Iovec(address, size), 1, 0)
            if done <= 0:
                number = ctypes.get_errno()
                raise ConnectionError(f"the memory of rank {rank} cannot be reached: {os.strerror(number)}")
            left, here, address = left - done, here + done, address + done


class Staged(Windows):
    """A file for each size, in a folder of this user's; files are used again and again."""

    name = "shared files"
    _SHIFT = 8  # an address is a file's number and the power of two that is its size

    def __init__(self, folder: str, rank: int) -> None:
        self._folder, self._rank = folder, rank
        self._numbers = count(1)
        self._free: dict[int, list[int]] = {}
        self._maps: dict[tuple[int, int], torch.Tensor] = {}

    def open(self, tensor: torch.Tensor, filled: bool) -> int:
        power = max(12, (tensor.numel() * tensor.element_size() - 1).bit_length())
        free = self._free.setdefault(power, [])
        address = free.pop() if free else next(self._numbers) << self._SHIFT | power
        if filled:
            self._view(self._rank, address, tensor).copy_(_bytes_of(tensor))
        return address

    def update(self, address: int, part: torch.Tensor, offset: int) -> None:
        self._view(self._rank, address, part, offset).copy_(_bytes_of(part))

    def close(self, address: int, tensor: torch.Tensor, written: bool) -> None:
        if written:
            _bytes_of(tensor).copy_(self._view(self._rank, address, tensor))
        self._free[address & ((1 << self._SHIFT) - 1)].append(address)

    def read(self, rank: int, address: int, into: torch.Tensor, offset: int = 0) -> None:
        _bytes_of(into).copy_(self._view(rank, address, into, offset))

    def write(self, rank: int, address: int, source: torch.Tensor) -> None:
        self._view(rank, address, source).copy_(_bytes_of(source))

    def end(self) -> None:
        for rank, address in self._maps:
            if rank == self._rank:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._path(rank, address))
        self._maps.clear()
        with contextlib.suppress(OSError):  # it is empty when the last rank comes
            os.rmdir(self._folder)

    def _path(self, rank: int, address: int) -> str:
        return os.path.join(self._folder, f"{rank}-{address}")

    def _view(self, rank: int, address: int, like: torch.Tensor, offset: int = 0) -> torch.Tensor:
        file = self._maps.get((rank, address))
        if file is None:
            size = 1 << (address & ((1 << self._SHIFT) - 1))
            file = self._maps[rank, address] = torch.from_file(
                self._path(rank, address), shared=True, size=size, dtype=torch.uint8, device="cpu"
            )
        return file[offset : offset + like.numel() * like.element_size()]


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    # a tensor of one element may call itself contiguous and have any stride
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)
