"""The `ProcessGroup` that torch sees: takes torch's arguments apart and hands them to meetings and mailbox."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from dtcourse.backends.deaths import Dead, Deaths
from dtcourse.backends.shared_memory.block import Block
from dtcourse.backends.shared_memory.mailbox import ANY, Mailbox
from dtcourse.backends.shared_memory.meetings import Meetings, Reduce
from dtcourse.backends.shared_memory.staging import buffer, contiguous, flat, pieces, space
from dtcourse.backends.shared_memory.windows import Direct, Staged, Windows
from dtcourse.backends.shared_memory.work import Done, MessageWork, Worker

NAME = "shared_memory"

Tensors = list[torch.Tensor]

_REDUCTIONS: dict[str, Reduce] = {
    "SUM": torch.Tensor.add_,
    "AVG": torch.Tensor.add_,
    "PRODUCT": torch.Tensor.mul_,
    "MIN": lambda total, part: torch.minimum(total, part, out=total),
    "MAX": lambda total, part: torch.maximum(total, part, out=total),
    "BAND": torch.Tensor.bitwise_and_,
    "BOR": torch.Tensor.bitwise_or_,
    "BXOR": torch.Tensor.bitwise_xor_,
}


class SharedMemoryGroup(dist.ProcessGroup):
    """A process group over the memory of this machine."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta, deaths: Deaths) -> None:
        super().__init__(rank, size)
        self._block = Block(store, rank, size)
        self.windows, pids = _windows(store, self._block)
        dead = Dead(deaths, pids)
        self._meetings = Meetings(self._block, self.windows, dead, timeout.total_seconds())
        self._mailbox = Mailbox(self._block, self.windows, dead, timeout.total_seconds())
        self._worker = Worker()
        self._closed = False

    def getBackendName(self) -> str:
        return NAME

    def name(self) -> str:
        return NAME

    # -- messages -----------------------------------------------------------------------------------------------

    def send(self, tensors: Tensors, receiver: int, tag: int = 0) -> dist.Work:
        (tensor,) = tensors
        return MessageWork(self._mailbox, self._mailbox.send(flat(tensor), receiver, tag), tensor)

    def recv(self, tensors: Tensors, sender: int, tag: int = 0) -> dist.Work:
        (tensor,) = tensors
        return MessageWork(self._mailbox, self._mailbox.receive(buffer(tensor), sender, tag), tensor)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> dist.Work:
        return self.recv(tensors, ANY, tag)

    # -- collectives --------------------------------------------------------------------------------------------

    def allreduce(self, tensors: Tensors, opts: Any) -> dist.Work:
        reduce = _reduction(opts, tensors)

        def work() -> None:
            for tensor in tensors:
                for piece in pieces(tensor):
                    self._meetings.all_reduce(piece, reduce)
                    self._average(piece, opts)

        return self._do(work, tensors, opts)

    allreduce_coalesced = allreduce

    def reduce(self, tensors: Tensors, opts: Any) -> dist.Work:
        reduce = _reduction(opts, tensors)

        def work() -> None:
            (tensor,) = tensors
            for piece in pieces(tensor):
                self._meetings.reduce(piece, opts.rootRank, reduce)
                if self.rank() == opts.rootRank:
                    self._average(piece, opts)

        return self._do(work, tensors, opts)

    def broadcast(self, tensors: Tensors, opts: Any) -> dist.Work:
        def work() -> None:
            for tensor in tensors:
                for piece in pieces(tensor):
                    self._meetings.broadcast(piece, opts.rootRank)

        return self._do(work, tensors, opts)

    def allgather(self, outputs: list[Tensors], inputs: Tensors, opts: Any = None) -> dist.Work:
        def work() -> None:
            for outs, tensor in zip(outputs, inputs, strict=True):
                with contiguous(*outs) as buffers:
                    self._meetings.all_gather(buffers, flat(tensor))

        return self._do(work, [t for outs in outputs for t in outs], opts)

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> dist.Work:
        def work() -> None:
            with contiguous(output) as (whole,):
                self._meetings.all_gather(list(whole.tensor_split(self.size())), flat(input))

        return self._do(work, [output], opts)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> dist.Work:
        return [self.all_gather_single(o, i, opts) for o, i in zip(outputs, inputs, strict=True)][-1]

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(self, outputs: list[Tensors], inputs: Tensors, opts: Any) -> dist.Work:
        def work() -> None:
            with contiguous(*(outputs[0] if outputs else [])) as buffers:
                self._meetings.gather(buffers, flat(inputs[0]), opts.rootRank)

        return self._do(work, outputs[0] if outputs else [], opts)

    def scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any) -> dist.Work:
        def work() -> None:
            sources = [flat(t) for t in inputs[0]] if inputs else []
            with contiguous(outputs[0]) as (whole,):
                self._meetings.scatter(whole, sources, opts.rootRank)

        return self._do(work, outputs, opts)

    def reduce_scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any) -> dist.Work:
        reduce = _reduction(opts, outputs)

        def work() -> None:
            for output, tensors in zip(outputs, inputs, strict=True):
                with contiguous(output) as (whole,):
                    self._meetings.reduce_scatter(whole, [flat(t) for t in tensors], reduce)
                    self._average(whole, opts)

        return self._do(work, outputs, opts)

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any) -> dist.Work:
        return self.reduce_scatter([output.view(-1)], [list(input.reshape(-1).tensor_split(self.size()))], opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any) -> dist.Work:
        return [self.reduce_scatter_single(o, i, opts) for o, i in zip(outputs, inputs, strict=True)][-1]

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> dist.Work:
        def work() -> None:
            with contiguous(*outputs) as buffers:
                self._meetings.all_to_all(buffers, [flat(t) for t in inputs])

        return self._do(work, outputs, opts)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_sizes: list[int],
        input_sizes: list[int],
        opts: Any = None,
    ) -> dist.Work:
        def parts(tensor: torch.Tensor, sizes: list[int]) -> Tensors:
            return list(tensor.split(list(sizes)) if sizes else tensor.tensor_split(self.size()))

        return self.alltoall(parts(output, output_sizes), parts(input, input_sizes), opts)

    alltoall_base = all_to_all_single

    def barrier(self, opts: Any = None) -> dist.Work:
        return self._do(self._meetings.barrier, [], opts)

    # -- how -----------------------------------------------------------------------------------------------------

    def _do(self, work: Callable[[], None], tensors: Tensors, opts: Any) -> dist.Work:
        """Now, in this thread; or in the worker, if it is asynchronous or comes after something that is."""
        if self.size() == 1 or not (getattr(opts, "asyncOp", True) or self._worker.busy):
            work()
            return Done(tensors)
        return self._worker.submit(_after_this_stream(work), tensors)

    def _average(self, tensor: torch.Tensor, opts: Any) -> None:
        if opts.reduceOp.op.name == "AVG":
            tensor.div_(self.size())

    def shutdown(self) -> None:
        if not self._closed:
            self._closed = True
            self._worker.stop(self._give_back)

    def _give_back(self) -> None:
        self.windows.end()
        self._block.close()

    abort = shutdown


def _windows(store: dist.Store, block: Block) -> tuple[Windows, list[int]]:
    """Direct if every rank may read every other, otherwise staged: all decide the same. And the ranks' processes."""
    Direct.allow()
    sample = space(torch.empty(1, device="cuda" if torch.cuda.is_initialized() else "cpu"))
    store.set(f"pid {block.rank}", f"{os.getpid()} {sample.data_ptr()}")
    known = [store.get(f"pid {rank}").decode().split() for rank in range(block.size)]
    pids = [int(pid) for pid, _ in known]
    mine = Direct.possible(pids, [int(address) for _, address in known])
    store.set(f"direct {block.rank}", str(int(mine)))
    if all(int(store.get(f"direct {rank}")) for rank in range(block.size)):
        return Direct(pids), pids
    if block.rank == 0:
        store.set("folder", tempfile.mkdtemp(prefix="dtcourse-", dir=os.environ.get("DTCOURSE_FOLDER")))
    return Staged(store.get("folder").decode(), block.rank), pids


def _after_this_stream(work: Callable[[], None]) -> Callable[[], None]:
    """On a GPU: what the worker does comes after what the stream of this thread has been given so far."""
    if not torch.cuda.is_initialized():
        return work
    ready, beside = torch.cuda.Event(), torch.cuda.Stream()
    ready.record()

    def after() -> None:
        with torch.cuda.stream(beside):
            beside.wait_event(ready)
            work()
            beside.synchronize()

    return after


def _reduction(opts: Any, tensors: Tensors) -> Reduce:
    name = opts.reduceOp.op.name
    if name not in _REDUCTIONS:
        raise ValueError(f"the reduction {name} is not known here: use one of {', '.join(_REDUCTIONS)}")
    if name == "AVG" and not all(t.is_floating_point() or t.is_complex() for t in tensors):
        raise ValueError("the average of integers is no integer: sum, and divide as you need it")
    return _REDUCTIONS[name]


def register(deaths: Deaths) -> None:
    """Let `init_process_group` know the backend by its name."""

    def make(store: dist.Store, rank: int, size: int, timeout: timedelta) -> dist.ProcessGroup:
        return SharedMemoryGroup(store, rank, size, timeout, deaths)

    dist.Backend.register_backend(NAME, make, devices=["cpu", "cuda"])
