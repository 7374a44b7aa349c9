"""A communication thread: what it is given it does one after the other, while the rank goes on computing.

    background = Background()
    task = background.submit(ring_all_reduce, gradient)      # returns at once
    ...                                                      # computes something else meanwhile
    task.wait()                                              # gradient is summed; or raises what ring_all_reduce raised

In order: all ranks have to call the same collectives in the same order, and with one thread it is enough that they
submit them in the same order. On a GPU the thread has a stream of its own: a task begins when the work is done that the
submitting stream had been given before, and `wait` lets the waiting stream go on when the task's work is done. A tensor
that a task uses has to live until then.

Source: Horovod's background thread (horovod/common/operations.cc).
"""

from __future__ import annotations

import contextlib
import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import torch
import torch.distributed as dist

from dtcourse.events import region

PATIENCE = 0.5  # seconds that a task which is under way has to end by itself


class Background:
    """A thread that ends when nobody has this object any more, or with `close`.

    After a task has raised, none of those behind it is begun: each raises the same, and so does `submit`.
    """

    def __init__(self) -> None:
        self._tasks: queue.Queue[Task | None] = queue.Queue()
        self._failures: list[BaseException] = []  # the first one
        arguments = self._tasks, self._failures  # and not this object: it would never go
        self._thread = threading.Thread(target=_work, args=arguments, name="communication", daemon=True)
        self._thread.start()
        self._end = weakref.finalize(self, self._tasks.put, None)

    def submit(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Task:
        """Have `function(*arguments, **named)` called after all that was submitted before.

        Raises RuntimeError after `close`, and what an earlier task has raised.
        """
        if self._failures:
            raise self._failures[0]
        if not self._end.alive:
            raise RuntimeError("the communication thread has been closed: make another one")
        task = Task(lambda: function(*arguments, **named))
        self._tasks.put(task)
        return task

    def close(self) -> None:
        """End the thread: tasks that are not under way are cancelled. A task that hangs is left to itself."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._tasks.get_nowait().cancel()
        self._end()
        self._thread.join(PATIENCE)


def group_of_its_own(group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    """A new group of the same ranks and backend, for the thread alone: all of them call it at the same time.

    What the main thread sends meanwhile, in the old one, cannot be taken for what the thread sends.
    """
    if group is None or group is dist.group.WORLD:
        return dist.new_group(backend=dist.get_backend())
    ranks = dist.get_process_group_ranks(group)
    return dist.new_group(ranks, backend=dist.get_backend(group), use_local_synchronization=True)


class Task:
    """Something that the thread does, or will do."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function, self._future = function, Future()
        self.home: torch.device | None = None  # of what the function makes, where there is a GPU
        if torch.cuda.is_initialized():
            self.home = torch.empty(0).device
            self._asked = torch.cuda.current_stream().record_event()
            self._done: torch.cuda.Event | None = None

    def wait(self) -> Any:
        """What the function returned, once it has; on a GPU the current stream waits, and not the host.

        Raises what the function raised, and CancelledError if the thread was closed before it began.
        """
        with region("wait"):
            result = self._future.result()
        if self.home:
            torch.cuda.current_stream().wait_event(self._done)
        return result

    def cancel(self) -> None:
        self._future.cancel()

    def _call(self) -> Any:
        """And let go of it: who made the function may hold this task, and none would ever go."""
        function, self._function = self._function, None
        return function()

    def run(self, failures: list[BaseException], stream: torch.cuda.Stream | None) -> None:
        """In the thread: do it, unless one before it has failed."""
        if not self._future.set_running_or_notify_cancel():
            return
        try:
            if failures:
                raise failures[0]
            result = self._call() if stream is None else self._run_on(stream)
        except BaseException as problem:
            failures[:] = failures or [problem]
            self._future.set_exception(problem)
        else:
            self._future.set_result(result)

    def _run_on(self, stream: torch.cuda.Stream) -> Any:
        with torch.cuda.stream(stream), self.home:
            stream.wait_event(self._asked)
            result = self._call()
            self._done = stream.record_event()
            return result


def _work(tasks: queue.Queue[Task | None], failures: list[BaseException]) -> None:
    stream = None
    while task := tasks.get():
        if task.home and not stream:
            stream = torch.cuda.Stream()
        task.run(failures, stream)
        del task  # or what it holds would live until the next one
