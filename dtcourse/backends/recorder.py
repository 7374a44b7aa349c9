"""The recorder: a process group that hands every call to the one inside it and writes down what happened.

It is an ordinary `dist.ProcessGroup`: the reader's code, stock DistributedDataParallel, and all else that takes a
group run through it unchanged. It publishes an operation before it enters it and reads what the others published:
ranks that disagree get an error instead of an abort, a hang or a wrong sum.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from dtcourse.backends import strict
from dtcourse.backends.ledger import Posting
from dtcourse.backends.recorded_work import RecordedWork, Tensors, begin_to_wait
from dtcourse.backends.recording import Group, Recording
from dtcourse.backends.tape import Column, Kind
from dtcourse.errors import RankDied
from dtcourse.events import ANY_RANK

Enter = Callable[[], dist.Work]  # enters the operation of the inner group

_CPU = torch.device("cpu")
_WRONG_IF_STRIDED = {"all_reduce", "broadcast", "reduce"}


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
        self._work = work
        self._device = _CPU if "gloo" in backend else recording.device
        self._strict = recording.strict
        self.group = Group(zlib.crc32(f"{name} {ranks}".encode()), ranks, recording.strict)
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
        return self._begin(enter, posting, tensors)

    def _begin(self, enter: Enter, posting: Posting, tensors: Tensors) -> dist.Work:
        return self._work(self, enter(), posting, tensors)

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
            strict.check_tensors(tensors, self._device)
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
        recording.let_go()
        # torch waits for it at once; a backend may do all the work, and the waiting, as it enters
        wait_from = begin_to_wait(recording, posting)
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
