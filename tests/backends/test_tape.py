"""The tape, read by one process while another writes: no number is ever half there."""

from __future__ import annotations

import os
import signal
import time

from dtcourse.backends.tape import WIDTH, Column, Files, Kind, Reader, Writer


def while_another_process(writes, reads, seconds=1.0):
    """Call `reads` again and again while a forked process does the same with `writes`."""
    pid = os.fork()
    if pid == 0:
        while True:
            writes()
    try:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            reads()
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_a_column_that_is_filled_anew_goes_from_one_value_to_the_next():
    files = Files.create()
    writer, reader, seen = Writer(files), Reader(files), set()
    writer.append([Kind.RECV] * WIDTH)

    def writes():
        writer.fill(0, Column.PEER, 3)
        writer.fill(0, Column.PEER, -2)

    writes()
    while_another_process(writes, lambda: seen.add(reader.row(0)[Column.PEER]))
    assert seen <= {3, -2}


def test_the_last_columns_are_never_zero_in_between():
    files = Files.create()
    writer, reader, seen = Writer(files), Reader(files), set()
    writer.append([Kind.SEND] * WIDTH)
    last = Column.ENDED - Column.SEQUENCE + 1
    while_another_process(lambda: writer.finish(0, *[7] * last), lambda: seen.update(reader.row(0)))
    assert seen <= {Kind.SEND, 7}
