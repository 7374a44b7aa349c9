"""Chooses for every rank the device on which its tensors live, and the backend that joins the ranks."""

from __future__ import annotations

import os
from typing import NamedTuple

import torch

BACKENDS = ("shared_memory", "gloo", "nccl")
DEVICES = ("auto", "cpu", "cuda")


class Placement(NamedTuple):
    """Where the ranks of a cluster live."""

    devices: tuple[str, ...]  # of each rank: "cpu", "cuda:0", ...
    backend: str


def place(world_size: int, device: str = "auto", backend: str = "auto") -> Placement:
    """One GPU per rank and NCCL if there are enough GPUs; ranks that share them if there are fewer; the CPU if none.

    What is "auto" is what the environment variables DTCOURSE_DEVICE and DTCOURSE_BACKEND say, if they are set. gloo is
    for the CPU here: it has no messages between GPUs. Raises ValueError for what this machine cannot do.
    """
    device = os.environ.get("DTCOURSE_DEVICE", device) if device == "auto" else device
    backend = os.environ.get("DTCOURSE_BACKEND", backend) if backend == "auto" else backend
    if device not in DEVICES:
        raise ValueError(f"device is {_either(DEVICES)}, not {device!r}")
    if backend not in ("auto", *BACKENDS):
        raise ValueError(f"backend is {_either(('auto', *BACKENDS))}, not {backend!r}")
    gpus = 0 if device == "cpu" or backend == "gloo" else torch.cuda.device_count()
    if backend == "nccl" and gpus < world_size:
        raise ValueError(
            f'NCCL takes one GPU for each rank, and here are {gpus} for {world_size} ranks: with backend="auto" the '
            "ranks share what there is, or run on the CPU"
        )
    if device == "cuda" and not gpus:
        what = "gloo has no messages between GPUs" if backend == "gloo" else "torch finds no GPU on this machine"
        raise ValueError(f'device="cuda", but {what}: with device="auto" the same code runs on the CPU')
    if not gpus:
        return Placement(("cpu",) * world_size, backend if backend != "auto" else "shared_memory")
    if backend == "auto":
        backend = "nccl" if gpus >= world_size else "shared_memory"
    return Placement(tuple(f"cuda:{rank % gpus}" for rank in range(world_size)), backend)


def _either(words: tuple[str, ...]) -> str:
    return f"{', '.join(map(repr, words[:-1]))} or {words[-1]!r}".replace("'", '"')
