"""Frames between a jailed rank and the grader: a few words of JSON and the raw bytes of tensors.

From a rank only plain data is taken: numbers, strings, None, tensors, and lists, tuples, dicts, sets, slices and ranges
of them. Whatever else comes, or comes too large, raises Malformed; nothing that comes can run code. A frame is two
lengths, the JSON, then the bytes of its tensors one after the other. Imports torch and numpy, and touches no process.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import torch

from dtcourse import raw

LONGEST_WORDS = 4 << 20  # bytes of JSON in a frame
LARGEST_BODY = 64 << 20  # bytes of tensors in a frame
MOST_DIMENSIONS = 16
MOST_KEYS = 2000  # of a set or a dict: numbers can be chosen so that each has to be compared with each

DTYPES = {
    raw.dtype_name(dtype): dtype
    for dtype in (
        torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128, torch.bool,
        torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    )
}  # fmt: skip

_HEAD = struct.Struct("!II")
_LISTS = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset, "slice": slice, "range": range}


class Malformed(ValueError):
    """What came is not what a rank sends."""


class NotPlain(TypeError):
    """A value that is no plain data, and so cannot be sent."""


@dataclass
class Frame:
    """`words`: the JSON, a dict. `tensors`: what came with it. `body`: its bytes, where they are something else."""

    words: dict[str, Any]
    tensors: list[torch.Tensor] = field(default_factory=list)
    body: bytes = b""
    size: int = 0  # bytes, of a frame that came


# -- frames ------------------------------------------------------------------------------------------------------------


def pack(words: dict[str, Any], tensors: Sequence[torch.Tensor] = (), body: bytes = b"") -> bytes:
    """A frame, as bytes. Raises NotPlain for a tensor that has no bytes of its own."""
    described, parts = [], []
    for tensor in tensors:
        if not _travels(tensor):
            raise NotPlain(f"a tensor of {tensor.dtype}, {tensor.layout}")
        described.append([raw.dtype_name(tensor.dtype), list(tensor.shape)])
        parts.append(raw.to_bytes(tensor))
    text = json.dumps(words | {"tensors": described} if described else words, separators=(",", ":")).encode()
    body = b"".join(parts) if described else body
    return _HEAD.pack(len(text), len(body)) + text + body


class Unpacker:
    """Takes bytes as they come, and gives the frames that are complete.

    `trusted`: frames of the grader, which may be of any size.
    """

    def __init__(self, trusted: bool = False) -> None:
        self._trusted, self._bytes = trusted, bytearray()

    def feed(self, more: bytes) -> Iterator[Frame]:
        """Raises Malformed."""
        self._bytes += more
        while len(self._bytes) >= _HEAD.size:
            words, body = _HEAD.unpack_from(self._bytes)
            if not self._trusted and (words > LONGEST_WORDS or body > LARGEST_BODY):
                raise Malformed(f"a rank sent {words + body:,} bytes at once, and that is too much")
            end = _HEAD.size + words + body
            if len(self._bytes) < end:
                return
            text, content = bytes(self._bytes[_HEAD.size : end - body]), bytes(self._bytes[end - body : end])
            del self._bytes[:end]
            frame = _frame(text, content)
            frame.size = end
            yield frame


def _frame(text: bytes, body: bytes) -> Frame:
    try:
        words = json.loads(text)
    except (ValueError, RecursionError):
        raise Malformed("a rank sent words that are no JSON") from None
    if not isinstance(words, dict):
        raise Malformed("a rank sent JSON that is no dict")
    if "tensors" in words:
        return Frame(words, list(_tensors(words["tensors"], body)))
    return Frame(words, body=body)


def plain(values: Sequence[Any]) -> list[torch.Tensor]:
    """The tensors among the arguments of a run that can travel, and so are shown as they stand."""
    return [v for v in values if isinstance(v, torch.Tensor) and _travels(v)]


def _travels(tensor: torch.Tensor) -> bool:
    return raw.is_plain(tensor) and raw.dtype_name(tensor.dtype) in DTYPES


def empty(described: Any) -> list[torch.Tensor]:
    """Tensors of these dtypes and shapes, [[dtype, shape], ...], without values or memory. Raises Malformed."""
    return [torch.empty(shape, dtype=dtype, device="meta") for dtype, shape, _ in _descriptions(described)]


def _tensors(described: Any, body: bytes) -> Iterator[torch.Tensor]:
    at = 0
    for dtype, shape, size in _descriptions(described):
        content = body[at : at + size]
        if len(content) != size:
            raise Malformed("a rank sent a tensor without its bytes")
        at += size
        if dtype is torch.bool:  # any byte but 0 is true, and only 0 and 1 are bools
            yield raw.from_bytes(content, "uint8", shape).ne(0)
        else:
            yield raw.from_bytes(content, raw.dtype_name(dtype), shape)
    if at != len(body):
        raise Malformed("a rank sent more bytes than its tensors have")


def _descriptions(described: Any) -> Iterator[tuple[torch.dtype, list[int], int]]:
    """dtype, shape and bytes of each."""
    if not isinstance(described, list):
        raise Malformed("a rank described tensors without a list")
    for one in described:
        match one:
            case [str(name), list(shape)] if name in DTYPES and _is_shape(shape):
                size = prod(shape) * DTYPES[name].itemsize
                if size > LARGEST_BODY:
                    raise Malformed(f"a rank described a tensor of {size:,} bytes, and that is too much")
                yield DTYPES[name], shape, size
            case _:
                raise Malformed("a rank described a tensor that there cannot be")


def _is_shape(shape: list[Any]) -> bool:
    sizes = len(shape) <= MOST_DIMENSIONS and all(type(size) is int and size >= 0 for size in shape)
    return sizes and prod(max(1, size) for size in shape) <= LARGEST_BODY  # torch multiplies them, whatever is 0


# -- values ------------------------------------------------------------------------------------------------------------


def encode(value: Any, tensors: list[torch.Tensor]) -> Any:
    """A value as JSON; its tensors are appended to `tensors`. Raises NotPlain."""
    if value is None or isinstance(value, (bool, str)):
        return value if type(value) in (bool, str, type(None)) else str(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, np.generic):
        return encode(value.item(), tensors)
    if isinstance(value, np.ndarray):
        return {"array": encode(torch.from_numpy(np.ascontiguousarray(value)), tensors)}
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return {"tensor": len(tensors) - 1}
    if isinstance(value, (dict, set, frozenset)) and len(value) > MOST_KEYS:
        raise NotPlain(f"it has {len(value):,} entries, and {MOST_KEYS:,} are the most")
    if isinstance(value, dict):
        return {"dict": [[encode(key, tensors), encode(one, tensors)] for key, one in value.items()]}
    if isinstance(value, slice):
        return {"slice": [encode(one, tensors) for one in (value.start, value.stop, value.step)]}
    if isinstance(value, range):
        return {"range": [value.start, value.stop, value.step]}
    for name, kind in _LISTS.items():
        if isinstance(value, kind):
            return {name: [encode(one, tensors) for one in value]}
    raise NotPlain(f"a {type(value).__name__}")


def decode(value: Any, tensors: Sequence[torch.Tensor]) -> Any:
    """What `encode` encoded. Raises Malformed."""
    try:
        return _decode(value, tensors)
    except (ValueError, TypeError, LookupError, RecursionError):
        raise Malformed("a rank returned what is no plain data") from None


def _decode(value: Any, tensors: Sequence[torch.Tensor]) -> Any:
    if isinstance(value, str):
        return value.encode(errors="replace").decode()  # half a character could be written nowhere
    if not isinstance(value, (dict, list)):
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        if type(content) is not int or content < 0:
            raise Malformed
        return tensors[content]
    if kind == "array":
        return _decode(content, tensors).numpy()
    if kind in ("dict", "set", "frozenset") and len(content) > MOST_KEYS:
        raise Malformed
    if kind == "dict":
        return {_decode(key, tensors): _decode(one, tensors) for key, one in content}
    parts = [_decode(one, tensors) for one in content]
    if kind == "range" and len(range(*parts)) > LONGEST_WORDS:
        raise Malformed  # a few words that somebody may write out
    return _LISTS[kind](*parts) if kind in ("slice", "range") else _LISTS[kind](parts)
