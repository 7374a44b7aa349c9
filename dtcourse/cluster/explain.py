"""Puts what went wrong into words: which rank, on which line of the reader's, what was seen, what to try."""

from __future__ import annotations

import json
import os
import re
import signal

from dtcourse.backends.ledger import Posting
from dtcourse.backends.lines import is_readers
from dtcourse.backends.tape import Column, Kind, Reader
from dtcourse.cluster import sources
from dtcourse.cluster.crew import Member
from dtcourse.cluster.watch import Wait, Watch, describe
from dtcourse.events import NEW_GROUP
from dtcourse.failures import Failure

_MACHINERY = os.path.dirname(os.path.abspath(__file__)) + os.sep
_GROUPS = "which group to make"
_NO_READERS_LINE = "(line unknown)"


def where(row: tuple[int, ...], reader: Reader) -> str:
    """ "cell 3, line 5:  dist.recv(x, src=1)"."""
    if not row[Column.LINE]:
        return _NO_READERS_LINE
    file, number, function = json.loads(reader.blob(row[Column.LINE]))
    return f"{sources.place(file, number, function)}:  {sources.line(file, number)}"


def ranks_text(ranks: list[int]) -> str:
    """ "rank 1", "ranks 0, 1 and 3"."""
    ranks = sorted(ranks)
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def deadlock(
    stuck: dict[int, Wait], returned: set[int], running: set[int], dead: list[int], readers: list[Reader]
) -> str:
    """The text of a `Deadlock`."""
    needed = {rank for wait in stuck.values() for rank in wait.needs}
    gone = sorted(needed & returned)
    because = f"; {ranks_text(gone)} {'has' if len(gone) == 1 else 'have'} already returned" if gone else ""
    verb = "waits" if len(stuck) == 1 else "wait"
    lines = [f"{ranks_text(list(stuck))} {verb} for what will never come{because}."]
    for rank, wait in sorted(stuck.items()):
        reader = readers[rank]
        needs = ranks_text(list(wait.needs))
        labels = _labels(wait.posting.row, reader)
        lines.append(f"  rank {rank} waits in {describe(wait.posting, reader)}, for {needs}{labels}")
        lines.append(f"         at {where(wait.posting.row, reader)}")
    lines.append("  " + _chain(stuck, returned))
    if running:
        lines.append(f"  ({ranks_text(list(running))} still computed, but nobody above waits for that alone.)")
    if dead:
        lines.append(f"  ({ranks_text(dead)} {'has' if len(dead) == 1 else 'have'} died, and nobody waits for that.)")
    lines.append(_hint(stuck, bool(gone)))
    lines.append("As a picture: cluster.last_run.wait_graph(); over time: cluster.last_run.timeline()")
    return "\n".join(lines)


def _labels(row: tuple[int, ...], reader: Reader) -> str:
    """Of the regions around an operation: " (microbatch 2)"."""
    labels = reader.json(row[Column.LABELS]) or {}
    return f" ({', '.join(f'{name} {value}' for name, value in labels.items())})" if labels else ""


def _chain(stuck: dict[int, Wait], returned: set[int]) -> str:
    """The waits as one picture in a line: 0 -> 1 -> 0."""
    rank = min(stuck)
    path = [rank]
    while True:
        needs = [r for r in stuck[rank].needs if r in stuck] or [r for r in stuck[rank].needs if r in returned]
        if not needs:
            break
        rank = needs[0]
        path.append(rank)
        if rank in path[:-1] or rank not in stuck:
            break
    end = " (returned)" if path[-1] in returned else ""
    return "  waits for  ".join(f"[{r}]" for r in path) + end


def _hint(stuck: dict[int, Wait], gone: bool) -> str:
    kinds = {wait.posting.kind for wait in stuck.values()}
    if itself := [rank for rank, wait in stuck.items() if rank in wait.needs]:
        return f"Rank {itself[0]} waits for itself: leave out its own number where it goes through the others."
    if gone:
        return "Every rank has to take part as often as the others expect: look for a loop or an `if` that ends early."
    if kinds == {Kind.SEND}:
        return "A send returns when the other side receives: let one side receive first, or use dist.batch_isend_irecv."
    if kinds == {Kind.RECV}:
        return "Somebody has to send before all receive: start the send with dist.isend, or let one rank send first."
    return "Ranks have to call the operations they share in the same order."


def mismatch(pair: tuple[tuple[int, int], tuple[int, int]], readers: list[Reader]) -> str:
    """The text of a `MismatchError`: the two postings, (rank, row number) each."""
    rows = [readers[rank].row(number) for rank, number in pair]
    subject = _subject(rows, pair, readers)
    lines = [f"rank {pair[0][0]} and rank {pair[1][0]} disagree on {subject}."]
    for (rank, number), row in zip(pair, rows, strict=True):
        posting = describe(Posting(rank, number, row), readers[rank])
        lines.append(f"  rank {rank}: {posting}\n         at {where(row, readers[rank])}")
    if rows[0][Column.KIND] != Kind.COLLECTIVE:
        lines.append("The two ends of a message need the same number of elements and the same dtype.")
    elif subject == _GROUPS:
        lines.append(
            "Every rank has to call dist.new_group for every group, in the same order, also for one it is not in."
        )
    else:
        lines.append(
            "All ranks of a group have to call the same operations, in the same order, with tensors that fit together."
        )
    return "\n".join(lines)


def _subject(rows: list[tuple[int, ...]], pair: tuple, readers: list[Reader]) -> str:
    ops, tensors = [], []
    for (rank, _), row in zip(pair, rows, strict=True):
        ops.append(readers[rank].text(row[Column.OP]))
        tensors.append(json.loads(readers[rank].blob(row[Column.TENSOR]) or b"[]"))
    if rows[0][Column.KIND] != Kind.COLLECTIVE:
        same_size = rows[0][Column.ELEMENTS] == rows[1][Column.ELEMENTS]
        return "the dtype of a message" if same_size else "the size of a message"
    if ops[0].startswith(NEW_GROUP):
        return _GROUPS
    if ops[0] != ops[1]:
        return "which operation comes next"
    if rows[0][Column.PEER] != rows[1][Column.PEER]:
        return f"the root of {ops[0]}"
    if [t[0] for t in tensors[0]] != [t[0] for t in tensors[1]]:
        return f"the dtype of {ops[0]}"
    return f"the shape of {ops[0]}" if tensors[0] != tensors[1] else f"the reduction of {ops[0]}"


def failure(rank: int, failure: Failure, also: list[int], stopped: list[int]) -> str:
    """The text of a `RankError`: the reader's own line first, then the whole traceback."""
    said = f": {failure.message}" if failure.message else ""
    lines = [f"rank {rank} raised {failure.kind}{said}"]
    if own := _own_frame(failure):
        lines.append(f"  at {sources.place(*own)}:  {sources.line(*own[:2])}")
    if also:
        lines.append(f"  ({ranks_text(also)} raised the same)")
    if stopped:
        lines.append(
            f"  ({ranks_text(stopped)} had not finished, and {'was' if len(stopped) == 1 else 'were'} stopped)"
        )
    lines += ["", f"The traceback of rank {rank}:", *_traceback(failure)]
    return "\n".join(lines)


def unreadable(rank: int, problem: Exception) -> str:
    """The text of a `RankError` for a result that was sent and cannot be unpacked."""
    return (
        f"what rank {rank} returned cannot be read back in this process ({type(problem).__name__}: {problem}). "
        "Return tensors, numbers, strings, or lists and dicts of them"
    )


def _own_frame(failure: Failure) -> tuple[str, int, str] | None:
    own = [frame for frame in failure.frames if is_readers(frame[0])]
    return own[-1] if own else None


def _traceback(failure: Failure) -> list[str]:
    lines = []
    for file, number, function in failure.frames:
        if file.startswith(_MACHINERY):
            continue
        lines += [f"  {sources.place(file, number, function)}", f"    {sources.line(file, number)}"]
    last = failure.text.rstrip().splitlines()
    return [*lines, *(last[-1:] if failure.frames else last)]


def death(rank: int, status: int | None) -> str:
    """The text of a `RankDied`: `status` as `os.waitpid` gives it."""
    if status is None:
        return f"the process of rank {rank} is gone."
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        hint = {
            signal.SIGKILL: "Somebody killed it; if nobody did, the machine ran out of memory.",
            signal.SIGSEGV: "A library crashed in it, often because of memory that was freed or too small.",
            signal.SIGABRT: "A library gave up in it; what it printed above says why.",
            signal.SIGBUS: "A file in memory could not grow: the disk of the temporary files, or memory, is full.",
        }.get(number, "")
        return f"the process of rank {rank} was ended by {name}. {hint}".rstrip()
    code = os.WEXITSTATUS(status)
    return f"the process of rank {rank} exited with code {code}: did the function call os._exit()?"


def needed(how: str, failures: dict[int, Failure]) -> str:
    """The text of a `RankDied` that other ranks raised and nobody caught: `how` it died, and who needed it where."""
    at = [f"  rank {r} needed it at {stopped_at(f)}" for r, f in sorted(failures.items()) if f.died is not None]
    return "\n".join([how, *at, "Catch the ConnectionError there to go on without it: its `rank` says who died."])


def stopped_at(failure: Failure) -> str:
    """Where a rank was when it was stopped."""
    own = _own_frame(failure)
    return f"{sources.place(*own)}:  {sources.line(*own[:2])}" if own else "in a library"


def short(wait: Wait, reader: Reader) -> str:
    """ "recv from rank 1 (cell 3, line 5)", for a picture."""
    row = wait.posting.row
    what = describe(wait.posting, reader)
    if not row[Column.LINE]:
        return what
    file, number, _ = json.loads(reader.blob(row[Column.LINE]))
    return f"{what} ({sources.place(file, number)})"


def timeout(seconds: float | None, running: dict[int, Member], watch: Watch) -> str:
    """The text of a `RunTimeout`: where each rank was that had not finished."""
    waits = watch.waits()
    lines = [f"{ranks_text(list(running))} had not finished after {seconds:g} s."]
    for rank, member in sorted(running.items()):
        if rank in waits:
            row, reader = waits[rank].posting.row, watch.readers[rank]
            lines.append(f"  rank {rank} waits in {describe(waits[rank].posting, reader)}, at {where(row, reader)}")
        else:
            lines.append(f"  rank {rank} is at {_current_line(member)}")
    lines.append("If the work simply takes longer, raise Cluster(..., timeout=...).")
    return "\n".join(lines)


def _current_line(member: Member) -> str:
    """Where a busy rank is."""
    for file, number, function in re.findall(r'File "(.+?)", line (\d+) in (.+)', member.stack_as_text()):
        if is_readers(file):
            return f"{sources.place(file, int(number), function)}:  {sources.line(file, int(number))}"
    return "a line that cannot be told"


def left_over(watch: Watch) -> str:
    """A warning about operations that a run left without their other side."""
    lines = ["dtcourse: the run has ended, but these operations were never completed (the ranks were restarted):"]
    for posting in watch.unfinished()[:8]:
        reader = watch.readers[posting.rank]
        lines.append(f"  rank {posting.rank}: {describe(posting, reader)}, at {where(posting.row, reader)}")
    return "\n".join(lines)
