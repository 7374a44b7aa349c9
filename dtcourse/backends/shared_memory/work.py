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
NO_LIMIT = timedelta(0)  # what torch says for it
_TOO_LATE = "the operation was not complete after {:g} s"


class Done(dist._Work):
    """An operation that is complete."""

    def __init__(self, tensors: Tensors) -> None:
        super().__init__()
        self._tensors = tensors

    def wait(self, timeout: timedelta = NO_LIMIT) -> bool:
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

    def wait(self, timeout: timedelta = NO_LIMIT) -> bool:
        """Raises RuntimeError, as other backends do, if it is not complete in time."""
        if timeout != NO_LIMIT:
            done = threading.Event()
            self.future.add_done_callback(lambda _: done.set())
            if not done.wait(timeout.total_seconds()):
                raise RuntimeError(_TOO_LATE.format(timeout.total_seconds()))
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

    def wait(self, timeout: timedelta = NO_LIMIT) -> bool:
        """Raises RuntimeError, as other backends do, if it is not complete in time."""
        if self._open:
            try:
                self._mailbox.wait(self._message, timeout.total_seconds() if timeout != NO_LIMIT else None)
            except TimeoutError:
                raise RuntimeError(_TOO_LATE.format(timeout.total_seconds())) from None
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
        self._at_end: Callable[[], None] = lambda: None

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
        self._at_end()

    def stop(self, at_end: Callable[[], None]) -> None:
        """End the thread after what is left to do, and then call `at_end()`.

        Waits for it unless something is left: a collective that others never join must not keep the main thread.
        """
        if self._thread is None:
            at_end()
            return
        idle, self._at_end = not self.busy, at_end
        self._queue.put(None)
        if idle:
            self._thread.join()
