"""Tensors as raw bytes and a few words of JSON: how runs are kept and sent, without anything that could run code."""

from __future__ import annotations

import json

import torch


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether its elements, dtype and shape are all there is to it: no sparse, quantized, nested or meta tensor."""
    return tensor.layout == torch.strided and not (tensor.is_quantized or tensor.is_nested or tensor.is_meta)


def to_bytes(tensor: torch.Tensor) -> bytes:
    """The elements of a plain tensor in row-major order."""
    flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    flat = flat.as_strided((flat.numel(),), (1,))  # one element may call itself contiguous with any stride
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def from_bytes(raw: bytes, dtype: str, shape: list[int] | tuple[int, ...]) -> torch.Tensor:
    """The tensor whose elements are `raw`. Raises ValueError if the three do not fit together."""
    kind = getattr(torch, dtype, None) if isinstance(dtype, str) else None
    if not isinstance(kind, torch.dtype):
        raise ValueError(f"{dtype!r} is no dtype")
    flat = torch.frombuffer(bytearray(raw), dtype=torch.uint8) if raw else torch.empty(0, dtype=torch.uint8)
    try:
        return flat.view(kind).reshape(list(shape))
    except (RuntimeError, TypeError):
        raise ValueError(f"{len(raw)} bytes are no {dtype} tensor of shape {tuple(shape)}") from None


def pack(tensors: list[torch.Tensor] | tuple[torch.Tensor, ...]) -> bytes:
    """Several tensors in one piece: a line of JSON, then their bytes one after the other."""
    header = [[dtype_name(t.dtype), list(t.shape), t.numel() * t.element_size()] for t in tensors]
    return b"".join([json.dumps(header).encode(), b"\n", *map(to_bytes, tensors)])


def unpack(packed: bytes) -> tuple[torch.Tensor, ...]:
    """What `pack` packed."""
    header, _, body = packed.partition(b"\n")
    tensors, at = [], 0
    for dtype, shape, size in json.loads(header):
        tensors.append(from_bytes(body[at : at + size], dtype, shape))
        at += size
    return tuple(tensors)
