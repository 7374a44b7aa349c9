"""The grader, as a jailed rank sees it: the other end of its one socket, to be told things and to be asked."""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from dtcourse.grading.sandbox.wire import Frame, Unpacker, pack

_AT_ONCE = 1 << 18  # bytes


class Grader:
    """May be used by several threads of the rank: each gets the answers to its own questions."""

    def __init__(self, descriptor: int) -> None:
        self._sock = socket.socket(fileno=descriptor)
        self._sending = threading.Lock()
        self._waiting = threading.Condition()
        self._reading = False  # whether a thread is; the others wait for it
        self._answers: dict[int, Frame] = {}
        self._requests: list[Frame] = []
        self._numbers = itertools.count(1)
        self._frames: Iterator[Frame] = self._receive()

    def number(self) -> int:
        """A new number, for an operation or a question."""
        return next(self._numbers)

    def tell(self, words: dict[str, Any], tensors: Sequence[torch.Tensor] = ()) -> None:
        self.send(pack(words, tensors))

    def send(self, frame: bytes) -> None:
        with self._sending:
            self._sock.sendall(frame)

    def ask(self, words: dict[str, Any], tensors: Sequence[torch.Tensor] = ()) -> Frame:
        """The answer to what is asked, however long that takes."""
        number = self.number()
        self.tell(words | {"question": number}, tensors)
        return self._take(lambda: self._answers.pop(number, None))

    def request(self) -> Frame:
        """The next thing that the grader wants. Raises EOFError if it is gone."""
        return self._take(lambda: self._requests.pop(0) if self._requests else None)

    def _take(self, found: Any) -> Frame:
        with self._waiting:
            while (frame := found()) is None:
                if self._reading:
                    self._waiting.wait()
                    continue
                self._reading = True
                self._waiting.release()
                try:
                    new = next(self._frames, None)
                finally:
                    self._waiting.acquire()
                    self._reading = False
                    self._waiting.notify_all()
                if new is None:
                    raise EOFError("the grader is gone")
                if "answers" in new.words:
                    self._answers[new.words["answers"]] = new
                else:
                    self._requests.append(new)
            return frame

    def _receive(self) -> Iterator[Frame]:
        unpacker = Unpacker(trusted=True)
        while received := self._sock.recv(_AT_ONCE):
            yield from unpacker.feed(received)
