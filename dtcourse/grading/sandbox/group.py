"""In a jailed rank: the process group whose every call goes to the grader, and comes back from there.

What is sent leaves the rank at once; what is received comes when somebody waits for it, or asks until it is there. So
numbers that nobody waited for never arrive.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from dtcourse.backends.lines import innermost
from dtcourse.grading.sandbox.grader import Grader
from dtcourse.grading.sandbox.wire import Frame, NotPlain

NAME = "shared_memory"  # what torch calls it: a file that asks sees the same as in a check
AVERAGES = "the average of integers is no integer: sum, and divide as you need it"

Tensors = list[torch.Tensor]
Deliver = Callable[[Tensors], None]

_FOREVER = timedelta(0)
_SHOWN = 1 << 18  # bytes: larger arguments are not sent along with each call
_ERRORS = {"ValueError": ValueError, "RuntimeError": RuntimeError, "TimeoutError": TimeoutError}


class Asked:
    """What a run asks of the grader, with what is shown beside each call: its line, and the arguments of the run."""

    def __init__(self, grader: Grader, watched: Tensors) -> None:
        self.grader, self.watched = grader, watched
        self.shown = watched if sum(t.numel() * t.element_size() for t in watched) <= _SHOWN else []
        self._known: dict[Any, bool] = {}

    def claims(self) -> dict[str, Any]:
        """Whether this call is part of an object collective, where it comes from, and whether from the main thread."""
        code, line, control = innermost(self._known)
        place = [code.co_filename, line, code.co_name] if code else None
        main = threading.current_thread() is threading.main_thread()
        return {"line": place, "control": control, "main": main, "arguments": len(self.shown)}


class RelayedGroup(dist.ProcessGroup):
    """The group `number` of the grader's, of these global `ranks`."""

    def __init__(self, asked: Asked, number: int, name: str, rank: int, ranks: tuple[int, ...]) -> None:
        super().__init__(rank, len(ranks))
        self._asked, self._number, self._name, self._ranks = asked, number, name, ranks

    @property
    def group_name(self) -> str:
        return c10d._world.pg_names.get(self, self._name)

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

    @property
    def bound_device_id(self) -> None:
        return None

    def getBackendName(self) -> str:
        return NAME

    def name(self) -> str:
        return NAME

    def new_group(self, ranks: list[int], *, group_name: str, **_: Any) -> RelayedGroup | None:
        """What `dist.new_group` calls. None for a rank that is not in it."""
        words = {"do": "new_group", "ranks": list(ranks), "name": group_name, **self._asked.claims()}
        answer = _checked(self._asked.grader.ask(words, self._asked.shown))
        if self._ranks[self.rank()] not in ranks:
            return None
        return RelayedGroup(
            self._asked, answer.words["group"], group_name, ranks.index(self._ranks[self.rank()]), tuple(ranks)
        )

    # -- messages -----------------------------------------------------------------------------------------------

    def send(self, tensors: Tensors, dst: int, tag: int = 0) -> dist.Work:
        self._check_member(dst, "sends to")
        return self._post({"do": "send", "peer": dst, "tag": tag}, tensors, lambda values: None, tensors)

    def recv(self, tensors: Tensors, src: int, tag: int = 0) -> dist.Work:
        self._check_member(src, "receives from")
        return self._receive(tensors, src, tag)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> dist.Work:
        return self._receive(tensors, -1, tag)

    def _receive(self, tensors: Tensors, src: int, tag: int) -> dist.Work:
        words = {"do": "recv", "peer": src, "tag": tag, "outputs": _described(tensors)}
        return self._post(words, [], _into(tensors), tensors)

    def _check_member(self, rank: int, does: str) -> None:
        size = self.size()
        if 0 <= rank < size:
            return
        ring = ": in a ring the neighbours are (rank + 1) % world_size and (rank - 1) % world_size"
        hint = "" if "root" in does else ring
        raise ValueError(f"rank {self.rank()} {does} rank {rank}, but this group has the ranks 0 to {size - 1}{hint}")

    # -- collectives --------------------------------------------------------------------------------------------

    def _collective(
        self, op: str, inputs: Tensors, outputs: Tensors, opts: Any, deliver: Deliver | None = None, **more: Any
    ) -> dist.Work:
        words = {"do": "collective", "op": op, "outputs": _described(outputs), **more}
        words["async"] = bool(getattr(opts, "asyncOp", True))
        if hasattr(opts, "rootRank"):
            self._check_member(opts.rootRank, f"calls {op} with the root")
            words["root"] = opts.rootRank
        if hasattr(opts, "reduceOp"):
            words["reduction"] = opts.reduceOp.op.name
            if words["reduction"] == "AVG" and not all(t.is_floating_point() or t.is_complex() for t in inputs):
                raise ValueError(AVERAGES)
        return self._post(words, inputs, deliver or _into(outputs), outputs)

    def allreduce(self, tensors: Any, opts: Any = None) -> dist.Work:
        tensors = _listed(tensors)
        return self._collective("all_reduce", tensors, tensors, opts or dist.AllreduceOptions())

    allreduce_coalesced = allreduce

    def broadcast(self, tensors: Any, opts: Any) -> dist.Work:
        tensors = _listed(tensors)
        return self._collective("broadcast", tensors, tensors, opts)

    def reduce(self, tensors: Any, opts: Any) -> dist.Work:
        tensors = _listed(tensors)
        outputs = tensors if self.rank() == opts.rootRank else []
        return self._collective("reduce", tensors, outputs, opts)

    def allgather(self, outputs: list[Tensors], inputs: Tensors, opts: Any = None) -> dist.Work:
        flat = [output for listed in outputs for output in listed]
        return self._collective("all_gather", inputs, flat, opts or c10d.AllgatherOptions())

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> dist.Work:
        opts = opts or c10d.AllgatherOptions()
        return self._collective("all_gather", [input], [output], opts, _whole([output]), whole=True)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> dist.Work:
        opts = opts or c10d.AllgatherOptions()
        return self._collective("all_gather", inputs, outputs, opts, _whole(outputs), whole=True)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(self, outputs: list[Tensors], inputs: Tensors, opts: Any) -> dist.Work:
        return self._collective("gather", inputs, outputs[0] if outputs else [], opts)

    def scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any) -> dist.Work:
        return self._collective("scatter", inputs[0] if inputs else [], outputs, opts)

    def reduce_scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any = None) -> dist.Work:
        flat = [part for listed in inputs for part in listed]
        return self._collective("reduce_scatter", flat, outputs, opts or c10d.ReduceScatterOptions())

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> dist.Work:
        return self._collective("reduce_scatter", [input], [output], opts or c10d.ReduceScatterOptions(), whole=True)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> dist.Work:
        return self._collective("reduce_scatter", inputs, outputs, opts or c10d.ReduceScatterOptions(), whole=True)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> dist.Work:
        return self._collective("all_to_all", inputs, outputs, opts or c10d.AllToAllOptions())

    def all_to_all_single(
        self, output: torch.Tensor, input: torch.Tensor, output_sizes: list[int], input_sizes: list[int],
        opts: Any = None,
    ) -> dist.Work:  # fmt: skip
        opts, sizes = opts or c10d.AllToAllOptions(), list(input_sizes)
        return self._collective("all_to_all", [input], [output], opts, _whole([output]), whole=True, sizes=sizes)

    alltoall_base = all_to_all_single

    def barrier(self, opts: Any = None) -> dist.Work:
        return self._collective("barrier", [], [], opts or dist.BarrierOptions())

    def monitored_barrier(self, *args: Any, **kwargs: Any) -> None:
        self.barrier().wait()

    # -- how ----------------------------------------------------------------------------------------------------

    def _post(self, words: dict[str, Any], inputs: Tensors, deliver: Deliver, outputs: Tensors) -> dist.Work:
        number = self._asked.grader.number()
        words = {**words, "operation": number, "group": self._number, **self._asked.claims()}
        try:
            self._asked.grader.tell(words, [*inputs, *self._asked.shown])
        except NotPlain as problem:
            raise TypeError(f"{problem} cannot be sent: send a dense tensor") from None
        return RelayedWork(self._asked.grader, number, deliver, outputs)

    def shutdown(self) -> None:
        pass

    abort = shutdown

    def _set_group_desc(self, *_: Any) -> None:
        pass

    _set_group_name = _set_default_backend = _set_sequence_number_for_group = set_timeout = _set_group_desc


class RelayedWork(dist._Work):
    """The handle of an operation."""

    def __init__(self, grader: Grader, number: int, deliver: Deliver, outputs: Tensors) -> None:
        super().__init__()
        self._grader, self._number, self._deliver, self._outputs = grader, number, deliver, outputs
        self._done, self._source = False, -1
        self._turn = threading.Lock()
        self._future: torch.futures.Future | None = None

    def wait(self, timeout: timedelta = _FOREVER) -> bool:
        seconds = timeout.total_seconds() if timeout and timeout != _FOREVER else 0
        with self._turn:
            if self._done:
                return True
            aside = threading.current_thread() is not threading.main_thread() or threading.active_count() > 1
            words = {"do": "wait", "operation": self._number, "aside": aside, "seconds": seconds}
            self._arrive(self._grader.ask(words))
        return True

    def is_completed(self) -> bool:
        with self._turn:
            if not self._done:
                answer = self._grader.ask({"do": "poll", "operation": self._number})
                if answer.words.get("done"):
                    self._arrive(answer)
            return self._done

    def _arrive(self, answer: Frame) -> None:
        self._deliver(_checked(answer).tensors)
        self._source, self._done = answer.words.get("source", -1), True

    def get_future(self) -> torch.futures.Future:
        """Of what a thread waits for, from now on."""
        if self._future is None:
            self._future = torch.futures.Future()
            threading.Thread(target=self._fulfil, args=(self._future,), daemon=True).start()
        return self._future

    def _fulfil(self, future: torch.futures.Future) -> None:
        try:
            self.wait()
        except Exception as problem:
            future.set_exception(problem)
        else:
            future.set_result(self._outputs)

    def is_success(self) -> bool:
        return self._done

    def exception(self) -> None:
        return None

    def result(self) -> Tensors:
        self.wait()
        return self._outputs

    def synchronize(self) -> None:
        self.wait()

    def source_rank(self) -> int:
        return self._source

    _source_rank = source_rank


def _checked(answer: Frame) -> Frame:
    """Raises what the grader says has gone wrong."""
    if "error" in answer.words:
        kind, said = answer.words["error"]
        raise _ERRORS[kind](said)
    return answer


def _described(tensors: Tensors) -> list[Any]:
    return [[str(t.dtype).removeprefix("torch."), list(t.shape)] for t in tensors]


def _listed(tensors: Any) -> Tensors:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def _into(outputs: Tensors) -> Deliver:
    """One value for each output; for none, if nothing comes (to a rank that is not the root)."""

    def deliver(values: Tensors) -> None:
        with torch.no_grad():
            for output, value in zip(outputs, values, strict=False):
                output.copy_(value.reshape(output.shape))

    return deliver


def _whole(outputs: Tensors) -> Deliver:
    """The values for each output lie one after the other in it."""

    def deliver(values: Tensors) -> None:
        share = len(values) // len(outputs)
        for place, output in enumerate(outputs):
            parts = [value.flatten() for value in values[place * share : (place + 1) * share]]
            with torch.no_grad():
                output.copy_(torch.cat(parts).reshape(output.shape))

    return deliver
