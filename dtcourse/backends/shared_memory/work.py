"""The handles that torch gets for an operation: done, to be done by the worker, or a message; and the worker."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

from dtcourse.backends.shared_memory.mailbox import Mailbox, Message

Tensors = list[torch.Tensor]

WORKER = "shared_memory worker"  # the name of its thread


class Done(dist._Work):
    """An operation that is complete."""

    def __init__(self, tensors: Tensors) -> None:
        super().__init__()
        self._tensors = tensors

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def result(self) -> Tensors:
        return self._tensors

    def get_future(self) -> torch.futures.Future:
        future: torch.futures.Future = torch.futures.Future()
        future.set_result(self._tensors)
        return future


class Later(dist._Work):
    """An operation that the worker will do."""

    def __init__(self, tensors: Tensors) -> None:
        super().__init__()
        self._tensors = tensors
        self.future: torch.futures.Future = torch.futures.Future()

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        self.future.wait()
        return True

    def is_completed(self) -> bool:
        return self.future.done()

    def is_success(self) -> bool:
        return self.future.done()

    def result(self) -> Tensors:
        return self._tensors

    def get_future(self) -> torch.futures.Future:
        return self.future


class MessageWork(dist._Work):
    """A message. `tensor` is the reader's; `message.tensor` may be a contiguous stand-in."""

    def __init__(self, mailbox: Mailbox, message: Message, tensor: torch.Tensor) -> None:
        super().__init__()
        self._mailbox, self._message, self._tensor = mailbox, message, tensor
        self._open = True

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        if self._open:
            self._mailbox.wait(self._message)
            self._open = False
            if self._message.receives and self._message.tensor.data_ptr() != self._tensor.data_ptr():
                self._tensor.detach().copy_(self._message.tensor)
        return True

    def is_completed(self) -> bool:
        if not self._mailbox.complete(self._message):
            return False
        return self.wait()  # returns at once, with the bytes where the reader expects them

    def is_success(self) -> bool:
        return self.is_completed()

    def source_rank(self) -> int:
        return self._message.sender

    _source_rank = source_rank

    def result(self) -> Tensors:
        return [self._tensor]


class Worker:
    """A thread that does asynchronous collectives, one after the other, in the order in which they were called."""

    def __init__(self) -> None:
        self._queue: queue.Queue = queue.Queue()
        self._thread: threading.Thread | None = None

    @property
    def busy(self) -> bool:
        return self._queue.unfinished_tasks > 0

    def submit(self, work: Callable[[], None], tensors: Tensors) -> Later:
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name=WORKER, daemon=True)
            self._thread.start()
        later = Later(tensors)
        self._queue.put((work, later, torch.is_inference_mode_enabled()))
        return later

    def _serve(self) -> None:
        while (item := self._queue.get()) is not None:
            work, later, inference = item
            try:
                with torch.inference_mode() if inference else torch.no_grad():
                    work()
            except Exception as problem:
                self._queue.task_done()  # first: whoever has waited for the future finds the worker free
                later.future.set_exception(problem)
            else:
                self._queue.task_done()
                later.future.set_result(later.result())

    def stop(self) -> None:
        """End the thread, after what is left to do."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
