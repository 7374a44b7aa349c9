"""The recorder: a process group that hands every call to the one inside it and writes down what happened.

It is an ordinary `dist.ProcessGroup`: the reader's code, stock DistributedDataParallel, and all else that takes a
group run through it unchanged. It publishes an operation before it enters it and reads what the others published:
ranks that disagree get an error instead of an abort, a hang or a wrong sum.
"""

from __future__ import annotations

import functools
import json
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from dtcourse.backends import strict
from dtcourse.backends.device_clock import until
from dtcourse.backends.ledger import Posting
from dtcourse.backends.recording import Group, Recording, now
from dtcourse.backends.shared_memory import WORKER
from dtcourse.backends.tape import Column, Kind
from dtcourse.errors import RankDied
from dtcourse.events import ANY_RANK, NEW_GROUP

Tensors = list[torch.Tensor]
Enter = Callable[[], dist.Work]  # enters the operation of the inner group

_CPU = torch.device("cpu")
_WRONG_IF_STRIDED = {"all_reduce", "broadcast", "reduce"}
_FOREVER = timedelta(0)  # what torch takes for "no limit of your own"
_MAIN_THREAD = threading.main_thread().ident


class Recorder(dist.ProcessGroup):
    """Wraps `inner`, the group called `name` of the global ranks `ranks`, made with torch's backend `backend`."""

    def __init__(
        self,
        inner: dist.ProcessGroup,
        name: str,
        ranks: tuple[int, ...],
        backend: str,
        recording: Recording,
        work: type[RecordedWork],
    ) -> None:
        super().__init__(inner.rank(), inner.size())
        self.inner, self.recording = inner, recording
        self._name = name
        self._refuses_strided = _WRONG_IF_STRIDED if "gloo" in backend else set()
        self.nccl = "nccl" in backend
        self._work = StreamWork if self.nccl else work
        self._device = _CPU if "gloo" in backend else recording.device
        self._strict = recording.strict or self.nccl
        self.group = Group(zlib.crc32(f"{name} {ranks}".encode()), ranks, self._strict)
        recording.ledger.join(self.group.number)

    @property
    def group_name(self) -> str:
        return self._name

    @property
    def _device_types(self) -> list[torch.device]:
        return self.inner._device_types

    @property
    def bound_device_id(self) -> torch.device | None:
        return self.inner.bound_device_id

    def getBackendName(self) -> str:
        # not the inner one's: told "gloo", torch would look for gloo's own object behind our back
        return f"recorded {self.inner.name()}"

    # -- messages -----------------------------------------------------------------------------------------------

    def send(self, tensors: Tensors, dst: int, tag: int = 0) -> dist.Work:
        enter = lambda: self.inner.send(tensors, dst, tag)  # noqa: E731
        return self._message(Kind.SEND, "send", tensors, self._member(dst, "sends to"), tag, enter)

    def recv(self, tensors: Tensors, src: int, tag: int = 0) -> dist.Work:
        enter = lambda: self.inner.recv(tensors, src, tag)  # noqa: E731
        return self._message(Kind.RECV, "recv", tensors, self._member(src, "receives from"), tag, enter)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> dist.Work:
        enter = lambda: self.inner.recv_anysource(tensors, tag)  # noqa: E731
        return self._message(Kind.RECV, "recv", tensors, ANY_RANK, tag, enter)

    def _member(self, rank: int, does: str) -> int:
        """The global number of a rank of the group. Raises ValueError for one that is not in it."""
        size = len(self.group.ranks)
        if 0 <= rank < size:
            return self.group.ranks[rank]
        hint = (
            ""
            if "root" in does
            else ": in a ring the neighbours are (rank + 1) % world_size and (rank - 1) % world_size"
        )
        raise ValueError(f"rank {self.rank()} {does} rank {rank}, but this group has the ranks 0 to {size - 1}{hint}")

    def _message(self, kind: int, op: str, tensors: Tensors, peer: int, tag: int, enter: Enter) -> dist.Work:
        recording = self.recording
        if recording.run is None:
            return enter()
        step = 0
        if kind == Kind.SEND:
            step = recording.steps_received + 1
            recording.hold(step)
        if self._strict:
            strict.check_message(tensors, peer, tag, self._device)
        posting = recording.post(kind, op, self.group, peer, step, tensors, tag)
        if not self.nccl:
            return self._work(self, enter(), posting, tensors)
        if recording.batched:
            return StreamWork(self, enter(), posting, tensors)
        with self.batch() as works:  # alone, it would make a communicator for the pair, and wait there for the other
            works.append(StreamWork(self, enter(), posting, tensors))
        return works[0]

    @contextmanager
    def batch(self) -> Iterator[list[StreamWork]]:
        """NCCL begins the messages that are posted meanwhile all together. Put their handles into the list."""
        works: list[StreamWork] = []
        self.inner._start_coalescing(self._device)
        try:
            yield works
        finally:
            together = self.inner._end_coalescing(self._device)
        for work in works:
            work.is_part_of(together)

    # -- collectives --------------------------------------------------------------------------------------------

    def _collective(
        self, op: str, tensors: Tensors, opts: Any, enter: Enter, alike: Tensors | None = None
    ) -> dist.Work:
        """`alike`: the tensors whose shapes have to be the same on all ranks, if not `tensors`."""
        recording = self.recording
        if recording.run is None:
            return enter()
        if op in self._refuses_strided and not all(t.is_contiguous() for t in tensors):
            raise ValueError(
                f"{op} of a tensor that is not contiguous gives wrong values on gloo: pass tensor.contiguous()"
            )
        if self._strict:
            strict.check_device(tensors, self._device)
        root = opts.rootRank if hasattr(opts, "rootRank") else None
        peer = -1 if root is None else self._member(root, f"calls {op} with the root")
        reduce_op = opts.reduceOp.op.name if hasattr(opts, "reduceOp") else ""
        shapes = tuple(tuple(t.shape) for t in (tensors if alike is None else alike))
        agree_on = op, root, reduce_op, tuple(t.dtype for t in tensors), shapes
        step = recording.steps_received + 1
        recording.hold(step)
        posting = recording.post(Kind.COLLECTIVE, op, self.group, peer, step, tensors, agree_on=agree_on)
        if op == "barrier":
            posting.row[Column.CONTROL] = 1
            recording.tape.fill(posting.number, Column.CONTROL, 1)
        if getattr(opts, "asyncOp", True):
            return self._work(self, enter(), posting, tensors).follow()
        # torch waits for it at once; a backend may do all the work, and the waiting, as it enters
        wait_from = _begin_to_wait(recording, posting)
        try:
            return self._work(self, enter(), posting, tensors, wait_from)
        except RankDied as death:
            recording.lost(posting, wait_from, death.rank)
            raise

    def allreduce(self, tensors: Any, opts: Any = None) -> dist.Work:
        tensors, opts = _listed(tensors), opts or dist.AllreduceOptions()
        return self._collective("all_reduce", tensors, opts, lambda: self.inner.allreduce(tensors, opts))

    def allreduce_coalesced(self, tensors: Tensors, opts: Any) -> dist.Work:
        return self._collective("all_reduce", tensors, opts, lambda: self.inner.allreduce_coalesced(tensors, opts))

    def broadcast(self, tensors: Any, opts: Any) -> dist.Work:
        tensors = _listed(tensors)
        return self._collective("broadcast", tensors, opts, lambda: self.inner.broadcast(tensors, opts))

    def reduce(self, tensors: Any, opts: Any) -> dist.Work:
        tensors = _listed(tensors)
        return self._collective("reduce", tensors, opts, lambda: self.inner.reduce(tensors, opts))

    def allgather(self, outputs: list[Tensors], inputs: Tensors, opts: Any = None) -> dist.Work:
        opts = opts or c10d.AllgatherOptions()
        enter = lambda: self.inner.allgather(outputs, inputs, opts)  # noqa: E731
        return self._collective("all_gather", inputs, opts, enter, alike=[t for listed in outputs for t in listed])

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> dist.Work:
        opts = opts or c10d.AllgatherOptions()
        return self._collective("all_gather", [input], opts, lambda: self.inner.all_gather_single(output, input, opts))

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> dist.Work:
        opts = opts or c10d.AllgatherOptions()
        enter = lambda: self.inner.all_gather_single_coalesced(outputs, inputs, opts)  # noqa: E731
        return self._collective("all_gather", inputs, opts, enter)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(self, outputs: list[Tensors], inputs: Tensors, opts: Any) -> dist.Work:
        return self._collective("gather", inputs, opts, lambda: self.inner.gather(outputs, inputs, opts))

    def scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any) -> dist.Work:
        return self._collective("scatter", outputs, opts, lambda: self.inner.scatter(outputs, inputs, opts))

    def reduce_scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any = None) -> dist.Work:
        opts = opts or c10d.ReduceScatterOptions()
        enter = lambda: self.inner.reduce_scatter(outputs, inputs, opts)  # noqa: E731
        return self._collective("reduce_scatter", [t for listed in inputs for t in listed], opts, enter)

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> dist.Work:
        opts = opts or c10d.ReduceScatterOptions()
        enter = lambda: self.inner.reduce_scatter_single(output, input, opts)  # noqa: E731
        return self._collective("reduce_scatter", [input], opts, enter)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> dist.Work:
        opts = opts or c10d.ReduceScatterOptions()
        enter = lambda: self.inner.reduce_scatter_single_coalesced(outputs, inputs, opts)  # noqa: E731
        return self._collective("reduce_scatter", inputs, opts, enter)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> dist.Work:
        opts = opts or c10d.AllToAllOptions()
        enter = lambda: self.inner.alltoall(outputs, inputs, opts)  # noqa: E731
        return self._collective("all_to_all", inputs, opts, enter, alike=[])

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_sizes: list[int],
        input_sizes: list[int],
        opts: Any = None,
    ) -> dist.Work:
        opts = opts or c10d.AllToAllOptions()
        enter = lambda: self.inner.all_to_all_single(output, input, output_sizes, input_sizes, opts)  # noqa: E731
        return self._collective("all_to_all", [input], opts, enter, alike=[])

    alltoall_base = all_to_all_single

    def barrier(self, opts: Any = None) -> dist.Work:
        opts = opts or dist.BarrierOptions()
        opts.device = self._device
        return self._collective("barrier", [], opts, lambda: self.inner.barrier(opts))

    def monitored_barrier(self, *args: Any, **kwargs: Any) -> None:
        self._collective("barrier", [], None, lambda: self.inner.barrier(dist.BarrierOptions())).wait()


def _listed(tensors: Any) -> Tensors:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def _hand_on(name: str) -> Callable[..., Any]:
    def method(self: Recorder, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.inner, name)(*args, **kwargs)

    return method


for _name in (
    "_get_backend", "_get_backend_name", "_get_sequence_number_for_group", "_set_sequence_number_for_group",
    "_set_group_desc", "_set_group_name", "_set_default_backend", "_start_coalescing", "_end_coalescing",
    "_wait_for_pending_works", "_enable_collectives_timing", "_has_hooks", "abort", "get_group_store", "name",
    "set_timeout", "shutdown",
):  # fmt: skip
    if hasattr(dist.ProcessGroup, _name):
        setattr(Recorder, _name, _hand_on(_name))


class RecordedWork(dist._Work):
    """The handle of an operation. Notes when it is waited for, and when it is complete."""

    def __init__(
        self, group: Recorder, inner: dist.Work, posting: Posting, tensors: Tensors, wait_from: int = 0
    ) -> None:
        super().__init__()
        self._wait_from = wait_from
        self._group, self._inner, self._posting, self._tensors = group, inner, posting, tensors
        self._run = group.recording.run
        self._open = True

    def follow(self) -> RecordedWork:
        """Note the completion also if nobody waits (DistributedDataParallel never does)."""
        self._group.recording.following.add(self)
        self._inner.get_future().add_done_callback(lambda _: self.settle())
        return self

    def settle(self, patient: bool = False) -> None:
        """Note the completion now, if it happened and its callback is still on the way.

        `patient`: there is time to wait for it a little, should it be late on purpose.
        """
        future = self._inner.get_future()
        if future.done() and not _failed(future):
            self._complete(wait_from=0)

    def wait(self, timeout: timedelta = _FOREVER) -> bool:
        recording = self._group.recording
        if self._run is not recording.run or not self._open:
            return self._inner.wait(timeout)
        # with a limit it will go on by itself: nobody shall take it for stuck
        wait_from = self._wait_from or (_begin_to_wait(recording, self._posting) if timeout == _FOREVER else now())
        try:
            done = self._wait(timeout)
        except RankDied as death:
            self._lose(wait_from, death)
            raise
        self._complete(wait_from)
        recording.waited += now() - wait_from
        return done

    def _wait(self, timeout: timedelta) -> bool:
        return self._inner.wait(timeout)

    def _lose(self, wait_from: int, death: RankDied) -> None:
        recording = self._group.recording
        with recording.lock:
            if self._run is recording.run and self._open:
                self._open = False
                recording.following.discard(self)
                recording.lost(self._posting, wait_from, death.rank)

    def _complete(self, wait_from: int, ended: torch.cuda.Event | None = None) -> None:
        recording, posting = self._group.recording, self._posting
        with recording.lock:  # so that no run ends, and no tape is erased, between the question and the writing
            if self._run is not recording.run:
                return
            if not self._open:
                if wait_from:
                    recording.tape.fill(posting.number, Column.WAIT_FROM, wait_from)
                    recording.tape.fill(posting.number, Column.WAIT_TO, now())
                return
            self._open = False
            recording.following.discard(self)
            self._identify()
            recording.ended(posting, wait_from, self._tensors, ended)

    def _identify(self) -> None:
        """A receive from any rank has its bytes: note whose."""
        if self._posting.peer == ANY_RANK:
            sender = self._group.group.ranks[self._inner._source_rank()]
            self._group.recording.tape.fill(self._posting.number, Column.PEER, sender)
            self._group.recording.ledger.heard(self._posting, sender)

    def is_completed(self) -> bool:
        try:
            if not self._inner.is_completed():
                return False
        except RankDied as death:
            self._lose(0, death)
            raise
        self._complete(wait_from=0)  # whoever asks until it is so need not wait
        return True

    def get_future(self) -> torch.futures.Future:
        return self._inner.get_future()

    def result(self) -> Tensors:
        return self._inner.result()

    def exception(self) -> Any:
        return self._inner.exception()

    def is_success(self) -> bool:
        return self._inner.is_success()

    def synchronize(self) -> None:
        self._inner.synchronize()

    def source_rank(self) -> int:
        return self._inner._source_rank()

    _source_rank = source_rank


class StreamWork(RecordedWork):
    """The handle of an operation on NCCL, whose own `wait` only lets the stream wait, and the host go on.

    Here a wait is one of the host, too: so a hang is found on the line that waits, and a step is known when it is over.
    """

    _arrival: torch.cuda.Event | None = None  # when it was done, if nobody waited

    def is_part_of(self, batch: dist.Work) -> None:
        self._inner = batch

    def _wait(self, timeout: timedelta) -> bool:
        done = self._inner.wait(timeout)
        until(self._group.recording.clock.event())
        return done

    def follow(self) -> StreamWork:
        self._group.recording.following.add(self)
        self._inner.get_future().add_done_callback(self._note_arrival)  # runs on a stream that waits for it
        return self

    def _note_arrival(self, _: torch.futures.Future) -> None:
        self._arrival = self._group.recording.clock.event()

    def settle(self, patient: bool) -> None:
        recording = self._group.recording
        if self._open and self._run is recording.run and self._arrival is not None:
            wait_from = _begin_to_wait(recording, self._posting)
            until(self._arrival)
            self._complete(wait_from, self._arrival)


def _failed(future: torch.futures.Future) -> bool:
    try:
        future.value()
    except Exception:
        return True
    return False


def _begin_to_wait(recording: Recording, posting: Posting) -> int:
    """Let others see that this rank waits; since when."""
    if threading.get_ident() != _MAIN_THREAD or not _alone():
        recording.tape.fill(posting.number, Column.ASIDE, 1)
    since = now()
    recording.tape.fill(posting.number, Column.WAIT_FROM, since)
    return since


def _alone() -> bool:
    """Whether no other thread of the reader's could yet do what others wait for, while the main thread waits."""
    if threading.active_count() == 1:
        return True
    frames = sys._current_frames()  # of all threads at one moment
    return all(_is_bystander(thread) or _sleeps(frames.get(thread.ident)) for thread in threading.enumerate())


def _sleeps(frame: FrameType | None) -> bool:
    """Whether a thread waits without a limit, as in Queue.get or Event.wait, and no other has woken it."""
    if frame is None or frame.f_code is not threading.Condition.wait.__code__:
        return False
    waits = frame.f_locals
    return waits["timeout"] is None and waits.get("waiter") in waits["self"]._waiters  # whoever wakes it takes it out


def _is_bystander(thread: threading.Thread) -> bool:
    return (
        thread.ident == _MAIN_THREAD
        or thread.name == WORKER
        or isinstance(thread, threading._DummyThread)  # of a library
        or type(thread).__module__.startswith("tqdm")
    )


def record_all_groups(recording: Recording, work: type[RecordedWork] = RecordedWork) -> None:
    """From now on, every process group made in this process is made with a recorder around it.

    `work`: what its handles are.
    """
    make = c10d._new_process_group_helper
    recording.ledger.join(zlib.crc32(NEW_GROUP.encode()))  # at once: others may make a group before this rank does

    def make_recorded(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        with _joining(recording, *args[1:3], name=args[5]):
            group, store = make(*args, **kwargs)
            if group is dist.GroupMember.NON_GROUP_MEMBER or isinstance(group, Recorder):
                return group, store
            ranks = kwargs.get("global_ranks_in_group", args[2] if len(args) > 2 else ())
            name = c10d._world.pg_names[group]
            backend = str(c10d._world.pg_map[group][0])
            if "nccl" in backend:
                _connect(group, recording.device)
        recorder = Recorder(group, name, tuple(ranks) or tuple(range(group.size())), backend, recording, work)
        _replace_in_world(group, recorder, name)
        return recorder, store

    c10d._new_process_group_helper = make_recorded
    c10d.batch_isend_irecv = dist.batch_isend_irecv = _noting_batches(c10d.batch_isend_irecv, recording)


def _connect(group: dist.ProcessGroup, device: torch.device) -> None:
    """Let NCCL make its communicator while all ranks are here: made at the first message, it would wait for all."""
    group.allreduce([torch.zeros(1, device=device)]).wait()
    torch.cuda.synchronize(device)


@contextmanager
def _joining(recording: Recording, rank: int | None, ranks: list[int], name: str) -> Iterator[None]:
    """Let others see that this rank makes a group of `ranks`, and waits for them if it is one (its number `rank`).

    torch numbers the groups that a rank was asked to make: all have to be asked for the same ones. Only a group
    that its members agree on by themselves (`use_local_synchronization`) has a name from its ranks, and no number.
    """
    if recording.run is None or not ranks:
        yield
        return
    numbered = name.isdigit()
    who = tuple(range(dist.get_world_size()) if numbered else ranks)
    group = Group(zlib.crc32((NEW_GROUP if numbered else f"{NEW_GROUP} {name}").encode()), who)
    what, step = f"{NEW_GROUP}({list(ranks)})", recording.steps_received + 1
    posting = recording.post(Kind.COLLECTIVE, what, group, -1, step, [], agree_on=(name, *ranks))
    recording.tape.fill(posting.number, Column.CONTROL, 1)
    recording.tape.fill(posting.number, Column.MEMBERS, recording.tape.text(json.dumps(ranks)))
    wait_from = _begin_to_wait(recording, posting) if rank is not None else 0
    try:
        with recording.deaths.needing(ranks if rank is not None else []):
            yield  # if it fails, the operation stays pending: ranks that count differently are of no use
    except RankDied as death:
        recording.lost(posting, wait_from, death.rank)
        raise
    recording.ended(posting, wait_from, [])


def _noting_batches(batch_isend_irecv: Callable[..., Any], recording: Recording) -> Callable[..., Any]:
    @functools.wraps(batch_isend_irecv)
    def noting(operations: list[dist.P2POp]) -> list[dist.Work]:
        group = operations[0].group or dist.group.WORLD if operations else None
        recording.batched = True
        try:
            if not (isinstance(group, Recorder) and group.nccl and recording.run):
                return batch_isend_irecv(operations)
            with group.batch() as works:
                works += batch_isend_irecv(operations)
            return works
        finally:
            recording.batched = False

    return noting


def _replace_in_world(group: dist.ProcessGroup, recorder: Recorder, name: str) -> None:
    """Put the recorder into torch's tables, where the group was."""
    world = c10d._world
    for table in (world.pg_map, world.pg_names, world.pg_backend_config, world.pg_to_tag):
        table[recorder] = table.pop(group)
    for groups in world.tags_to_pg.values():
        groups[:] = [recorder if g is group else g for g in groups]
    c10d._unregister_process_group(name)
    c10d._register_process_group(name, recorder)
