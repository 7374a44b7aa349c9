"""Questions to this machine that may end in a crash or a hang, asked in a child process (this file, as a script).

`ask("torch")` returns what the child printed, or nothing if it failed in whatever way.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any


def ask(question: str, *arguments: str) -> str:
    """Ask in a child process; at most two minutes (the first import of torch can take one)."""
    command = [sys.executable, "-P", __file__, question, *arguments]  # -P: our folder must not shadow other modules
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def torch_build() -> dict[str, Any]:
    """What this torch was built with; asks no GPU anything."""
    import torch
    import torch.distributed as dist

    nccl = dist.is_available() and dist.is_nccl_available()
    return {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "gloo": dist.is_available() and dist.is_gloo_available(),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if nccl else None,
    }


def gpus() -> list[dict[str, Any]]:
    """Each GPU: its name, its bytes of memory, and the GPUs whose memory it can read directly."""
    import torch

    everyone = range(torch.cuda.device_count())

    def describe(gpu: int) -> dict[str, Any]:
        peers = [peer for peer in everyone if peer != gpu and torch.cuda.can_device_access_peer(gpu, peer)]
        properties = torch.cuda.get_device_properties(gpu)
        return {"name": properties.name, "memory": properties.total_memory, "peers": peers}

    return [describe(gpu) for gpu in everyone]


def memory(pid: str, address: str, length: str) -> str:
    """What lies at an address of another process, read with Linux's process_vm_readv."""

    class Piece(ctypes.Structure):
        _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))

    buffer = ctypes.create_string_buffer(int(length))
    here, there = Piece(ctypes.addressof(buffer), int(length)), Piece(int(address), int(length))
    call = ctypes.CDLL(None, use_errno=True).process_vm_readv
    call.restype = ctypes.c_ssize_t
    got = call(
        int(pid), ctypes.byref(here), ctypes.c_ulong(1), ctypes.byref(there), ctypes.c_ulong(1), ctypes.c_ulong(0)
    )
    return buffer.raw[: max(got, 0)].decode()


QUESTIONS: dict[str, Callable[..., Any]] = {"torch": torch_build, "gpus": gpus, "memory": memory}

if __name__ == "__main__":
    answer = QUESTIONS[sys.argv[1]](*sys.argv[2:])
    print(answer if isinstance(answer, str) else json.dumps(answer))
