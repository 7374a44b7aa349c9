"""The tape: what a rank did, written where the others and the reader's process can read it at any moment.

A tape is two anonymous files. `records` holds rows of 64-bit integers, a row per event; columns that are not known
yet are zero and are filled in later. `reel` holds what does not fit into an integer: texts and payloads. They are
files and not pipes so that a rank's record outlives the rank, and so that a rank that hangs in a library call can
still be read. They have no name: nobody else can open them, and they vanish with the last process that holds them.
"""

from __future__ import annotations

import json
import mmap
import os
import tempfile
import threading
from array import array
from dataclasses import dataclass

import numpy as np
import torch

from dtcourse import raw
from dtcourse.backends.fence import fence


class Column:
    """The columns of a row. References are into the reel; 0 is "nothing"."""

    KIND = 0  # one of `Kind`; stored last, and read first: whoever sees it will see the whole row
    OP = 1  # reference to a text
    GROUP = 2  # a number that all ranks of the group share
    MEMBERS = 3  # reference to JSON: global ranks
    SIZE = 4  # how many members
    PEER = 5  # global rank; -1: none
    TAG = 6
    BYTES = 7
    ELEMENTS = 8
    SIGNATURE = 9  # two ranks agree if this is equal
    TENSOR = 10  # reference to JSON: [dtype, shape] of each tensor
    LINE = 11  # reference to JSON: file, line, function
    LABELS = 12  # reference to JSON
    CONTROL = 13  # 1: a barrier, part of an object collective, or in region("control")
    ARGUMENTS = 14  # reference to packed tensors
    ASIDE = 15  # 1: waited for by another thread than the main one, or while another is at work
    BATCHED = 16  # 1: posted inside batch_isend_irecv
    POSTED = 17
    # from here to ENDED known only at the end: neighbours, so that they are written together
    SEQUENCE = 18
    STEP = 19
    PAYLOAD = 20  # reference to packed tensors
    WAIT_FROM = 21
    WAIT_TO = 22
    ENDED = 23
    LAG = 24  # on an emulated link: how late this rank was by the link's own fault
    DUE = 25  # on an emulated link: when this rank's part is over; written by whoever posts the last side


class Kind:
    """What a row tells of."""

    SEND = 1
    RECV = 2
    COLLECTIVE = 3
    REGION = 4
    MARK = 5
    RETURN = 6
    HELD = 7  # the rank stands still until it may take this step


WIDTH = 26
_LENGTH_BITS = 24
MAX_BLOB = (1 << _LENGTH_BITS) - 1  # bytes of one text or payload
MAX_ROWS = 1_000_000
_RECORDS_SIZE = MAX_ROWS * WIDTH * 8  # the file is sparse: only what is written takes memory


def anonymous_file() -> int:
    """A descriptor of a new file without a name."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("dtcourse")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


@dataclass(frozen=True)
class Files:
    """The two descriptors of a rank's tape."""

    records: int
    reel: int

    @staticmethod
    def create() -> Files:
        files = Files(anonymous_file(), anonymous_file())
        files.erase()
        return files

    def erase(self) -> None:
        os.ftruncate(self.records, 0)
        os.ftruncate(self.records, _RECORDS_SIZE)
        os.ftruncate(self.reel, 0)

    def close(self) -> None:
        os.close(self.records)
        os.close(self.reel)


class Writer:
    """The rank's own end."""

    def __init__(self, files: Files) -> None:
        self._files = files
        # not `struct`: it zeroes a place before it fills it, and somebody would read the zero
        self._words = memoryview(mmap.mmap(files.records, _RECORDS_SIZE)).cast("q")
        self._texts: dict[str, int] = {}
        self._lock = threading.Lock()
        self.rewind()

    def rewind(self) -> None:
        """Begin again, after somebody has erased the files."""
        self.rows = 0
        self._reel_end = 1  # so that no reference is 0
        self._texts.clear()

    def append(self, row: list[int]) -> int:
        """Write a row; its number."""
        number = self.rows
        if number >= MAX_ROWS:
            raise RuntimeError(f"a run records at most {MAX_ROWS:,} events a rank: make the run shorter")
        self.rows += 1
        words, at = self._words, number * WIDTH
        words[at + 1 : at + WIDTH] = array("q", row[1:])
        fence()
        words[at] = row[Column.KIND]
        return number

    def fill(self, number: int, column: int, value: int) -> None:
        """Set one column of a row."""
        self._words[number * WIDTH + column] = value

    def finish(self, number: int, *values: int) -> None:
        """Set the last columns of a row, from SEQUENCE to ENDED."""
        at = number * WIDTH
        self._words[at + Column.SEQUENCE : at + Column.ENDED + 1] = array("q", values)

    def text(self, text: str) -> int:
        """Keep a text, once; a reference to it."""
        reference = self._texts.get(text)
        if reference is None:
            reference = self._texts[text] = self.blob(text.encode())
        return reference

    def blob(self, content: bytes) -> int:
        """Keep some bytes; a reference to them."""
        if len(content) > MAX_BLOB:
            raise ValueError(
                f"a watched run keeps every tensor it sees, and {len(content):,} bytes is more than it can keep at "
                f"once ({MAX_BLOB:,}): watch a smaller tensor"
            )
        with self._lock:
            at, self._reel_end = self._reel_end, self._reel_end + len(content)
        os.pwrite(self._files.reel, content, at)
        return at << _LENGTH_BITS | len(content)

    def tensors(self, tensors: list[torch.Tensor] | tuple[torch.Tensor, ...]) -> int:
        """Keep tensors as they are now, those that are plain; a reference to them."""
        plain = [t for t in tensors if raw.is_plain(t)]
        return self.blob(raw.pack(plain)) if plain else 0


class Reader:
    """Anybody's view of a rank's tape."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._words = memoryview(mmap.mmap(files.records, _RECORDS_SIZE, access=mmap.ACCESS_READ)).cast("q")

    def empty(self) -> bool:
        return not self._words[Column.KIND]

    def rows(self, start: int) -> list[tuple[int, ...]]:
        """The rows from number `start` on that are there."""
        return [self.row(number) for number in range(start, self._end(start))]

    def _end(self, start: int) -> int:
        """The number of the first row from `start` on that is not there yet."""
        words, end = self._words, start
        while end < MAX_ROWS and words[end * WIDTH]:
            end += 1
        if end > start:
            fence()
        return end

    def row(self, number: int) -> tuple[int, ...]:
        """One row, as it is now."""
        return tuple(self._words[number * WIDTH : (number + 1) * WIDTH])

    def blob(self, reference: int) -> bytes:
        offset, length = reference >> _LENGTH_BITS, reference & MAX_BLOB
        return os.pread(self._files.reel, length, offset) if reference else b""

    def text(self, reference: int) -> str:
        return self.blob(reference).decode()

    def json(self, reference: int):  # noqa: ANN201 - whatever was written
        return json.loads(self.blob(reference)) if reference else None

    def copy(self) -> Recorded:
        """All of it, as bytes, for good."""
        rows = self._end(0)
        reel = os.fstat(self._files.reel).st_size
        return Recorded(_read_all(self._files.records, rows * WIDTH * 8), _read_all(self._files.reel, reel))


class Dues:
    """The column DUE of a rank's tape, by number of row. The one column that other ranks write, too."""

    def __init__(self, files: Files) -> None:
        self._words = memoryview(mmap.mmap(files.records, _RECORDS_SIZE)).cast("q")

    def __getitem__(self, number: int) -> int:
        return self._words[number * WIDTH + Column.DUE]

    def __setitem__(self, number: int, due: int) -> None:
        self._words[number * WIDTH + Column.DUE] = due


def _read_all(fd: int, size: int) -> bytes:
    parts, at = [], 0
    while at < size and (part := os.pread(fd, min(size - at, 1 << 26), at)):
        parts.append(part)
        at += len(part)
    return b"".join(parts)


@dataclass(frozen=True)
class Recorded:
    """A rank's tape, copied."""

    records: bytes
    reel: bytes

    def table(self) -> np.ndarray:
        """All rows, shape (events, columns)."""
        return np.frombuffer(self.records, dtype=np.int64).reshape(-1, WIDTH)

    def blob(self, reference: int) -> bytes:
        offset, length = reference >> _LENGTH_BITS, reference & MAX_BLOB
        return self.reel[offset : offset + length] if reference else b""
