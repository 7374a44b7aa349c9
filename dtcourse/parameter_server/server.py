"""A server: keeps its shard of the parameters and the optimizer's state, and answers the workers.

It takes one message after another, from whichever worker comes first, and asks its policy what to do with it: does this
gradient count, is it time to update, who may have the new parameters? So all that distinguishes synchronous from
asynchronous training lies in `policies`; this file only carries it out.

Cost, per round of W workers: W times the bytes of the shard in, and as much out; and before the first round the
parameters once to each worker.

Source: Li et al., "Scaling distributed machine learning with the parameter server" (2014).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from dtcourse.events import mark, region
from dtcourse.parameter_server.checkpoint import Checkpoint
from dtcourse.parameter_server.messages import Header, Kind, Sent, Wire
from dtcourse.parameter_server.policies import Asynchronous, Push, Standing
from dtcourse.parameter_server.shards import check_roles, difference, layout, shards


def serve(
    model: nn.Module,
    optimizer: Callable[..., Optimizer],
    policy: Asynchronous,
    *,
    servers: int = 1,
    schedule: Callable[[Optimizer], LRScheduler] | None = None,
    checkpoint: Checkpoint | None = None,
    **options: Any,
) -> dict[str, torch.Tensor]:
    """Serve on ranks 0 to servers-1, until all workers have finished. Returns this server's parameters, by name.

    optimizer   makes the optimizer: called with the parameters of this server's shard and `options`, as in
                serve(model, torch.optim.SGD, Synchronous(), lr=0.1)
    policy      a policy of its own for each server and training
    schedule    makes a schedule from the optimizer; it is stepped after each update
    checkpoint  where to save, and to begin from, also with the optimizer's options that lie there; without it the
                training begins with the parameters of `model`

    A worker that dies in a run with `may_die` ends its share: the policy says whether the others go on.

    Marks, in a recorded run: "begin" for each pull that is answered (worker, step, version, and `slowest`, the least
    steps that a worker has completed), "update" for each gradient that was applied (worker, step, staleness, and
    the version that the update made), "dropped" for each that was not, "lost" for a worker that died.

    Raises ValueError if the roles do not fit (a rank that should work, no workers, fewer parameters than servers) or if
    the checkpoint does not; TypeError for an optimizer that is made already, or a policy that is not; RuntimeError if
    so many workers die that the policy cannot go on, or if a worker that has finished begins another training while
    others are still at this one.
    """
    _check_kinds(optimizer, policy, checkpoint)
    return _Server(model, optimizer, policy, servers, schedule, checkpoint, options).run()


def _check_kinds(optimizer: Any, policy: Any, checkpoint: Any) -> None:
    if isinstance(optimizer, Optimizer):
        kind = type(optimizer).__name__
        raise TypeError(f"a server makes its optimizer itself, for its shard: serve(model, torch.optim.{kind}, ...)")
    if isinstance(policy, type):
        raise TypeError(f"policy is an object, {policy.__name__}(...), not the class")
    if checkpoint is not None and not isinstance(checkpoint, Checkpoint):
        raise TypeError(f"checkpoint is a Checkpoint(folder, every=100), not {checkpoint!r}")


class _Pulled(NamedTuple):
    """What a worker has, since it last pulled."""

    step: int
    version: int
    parameters: torch.Tensor


class _Server:
    def __init__(
        self,
        model: nn.Module,
        optimizer: Callable[..., Optimizer],
        policy: Asynchronous,
        servers: int,
        schedule: Callable[[Optimizer], LRScheduler] | None,
        checkpoint: Checkpoint | None,
        options: dict[str, Any],
    ) -> None:
        check_roles(servers, serves=True)
        self.rank, self.servers, self.policy, self.checkpoint = dist.get_rank(), servers, policy, checkpoint
        self.shard = shards(model, servers)[self.rank]
        self.layout = layout(model, servers)
        self.optimizer = optimizer(self.shard.parameters, **options)
        self.schedule = schedule(self.optimizer) if schedule else None
        workers = range(servers, dist.get_world_size())
        self.standing = Standing(set(workers), latest=dict.fromkeys(workers, -1))
        if not policy.can_go_on(self.standing):
            raise ValueError(f"{type(policy).__name__} needs more workers than {len(workers)}")
        if checkpoint:
            self._resume(checkpoint)
        self.newest = self.shard.flat()
        self.finished: set[int] = set()
        self.waiting: list[int] = []  # workers that want parameters, first come first served
        self.pulled: dict[int, _Pulled] = {}
        self.sent: dict[int, list[Sent]] = {}  # to each worker, since it was last heard of
        self.wire = Wire(self.newest.device)

    def run(self) -> dict[str, torch.Tensor]:
        while self.standing.working:
            try:
                self._take(self.wire.hear())
            except ConnectionError as problem:
                self._lose(problem)
            while self.policy.ready(self.standing):
                self._update()
            self._answer()
        for push in self.standing.kept:
            mark("dropped", worker=push.worker, step=push.step)
        for sent in (s for sends in self.sent.values() for s in sends):
            with suppress(ConnectionError):  # a worker that died after it had finished
                sent.wait()
        return {name: p.detach().cpu() for name, p in zip(self.shard.names, self.shard.parameters, strict=True)}

    # -- taking -------------------------------------------------------------------------------------------------

    def _take(self, header: Header) -> None:
        worker = header.sender
        for sent in self.sent.pop(worker, []):
            sent.wait()  # it has arrived, or this worker would not have gone on
        if header.kind == Kind.HELLO:
            self._check_hello(worker)
            self.sent[worker] = self.wire.tell_text(worker, self.layout)
        elif header.kind == Kind.PULL:
            self.waiting.append(worker)
        elif header.kind == Kind.PUSH:
            self._take_gradient(worker, header.count)
        elif header.kind == Kind.FINISH:
            self.standing.working.discard(worker)
            self.finished.add(worker)

    def _check_hello(self, worker: int) -> None:
        if worker in self.finished:
            at_work = ", ".join(str(other) for other in sorted(self.standing.working))
            raise RuntimeError(
                f"worker {worker} has finished, and begins another training while others ({at_work}) are still at this "
                "one: put dist.barrier() between the two on all ranks, or call cluster.run for each"
            )

    def _take_gradient(self, worker: int, samples: int) -> None:
        pulled, gradient = self.pulled[worker], torch.empty_like(self.newest)
        with region("take", worker=worker):
            self.wire.receive(worker, gradient).wait()
        push = Push(worker, pulled.step, pulled.version, samples, gradient, pulled.parameters)
        if self.policy.counts(push, self.standing):
            self.standing.kept.append(push)
        else:
            mark("dropped", worker=worker, step=push.step)
        self.standing.latest[worker] = push.step
        self.waiting.append(worker)

    def _lose(self, problem: ConnectionError) -> None:
        """Go on without a worker that died, if the policy can. What it has pushed before still counts."""
        rank, now = getattr(problem, "rank", None), self.standing
        if rank not in now.latest:
            raise problem  # another server, or nobody knows who
        self.waiting = [worker for worker in self.waiting if worker != rank]
        self.sent.pop(rank, None)
        if rank in now.working:
            mark("lost", worker=rank)
            now.working.discard(rank)
            # who has finished has done its share: only deaths can be too many
            if not self.policy.can_go_on(replace(now, working=now.working | self.finished)):
                policy, left = type(self.policy).__name__, len(now.working)
                raise RuntimeError(f"rank {rank} has died, and {policy} cannot go on with {left} workers") from problem

    # -- updating and answering ---------------------------------------------------------------------------------

    def _update(self) -> None:
        """One step of the optimizer with the gradients that are kept."""
        now = self.standing
        pushes, now.kept = sorted(now.kept, key=lambda push: push.worker), []  # the same sum whoever came first
        with region("update", version=now.version + 1):
            gradients = (self.policy.gradient(push, self.newest) for push in pushes)
            weighted = zip(self.policy.weights(pushes), gradients, strict=True)
            parts = [gradient if weight == 1 else weight * gradient for weight, gradient in weighted]
            self.shard.load_gradient(torch.stack(parts).sum(0) if len(parts) > 1 else parts[0])
            self.optimizer.step()
            if self.schedule:
                self.schedule.step()
            self.newest = self.shard.flat()  # a new tensor: what was sent before may still be under way
        staleness = {push: now.version - push.version for push in pushes}
        now.version += 1
        for push in pushes:
            mark("update", version=now.version, worker=push.worker, step=push.step, staleness=staleness[push])
        if self.checkpoint and now.version % self.checkpoint.every == 0:
            self._save(self.checkpoint)

    def _answer(self) -> None:
        """Send the parameters to all who wait for them and may begin. With nobody left at work, nobody waits longer."""
        now = self.standing
        for worker in [w for w in self.waiting if self.policy.may_begin(w, now) or not now.working]:
            self.waiting.remove(worker)
            pulled = _Pulled(self.policy.step(worker, now), now.version, self.newest)
            slowest = min((now.latest[w] + 1 for w in now.working), default=pulled.step)
            mark("begin", worker=worker, step=pulled.step, version=now.version, slowest=slowest)
            self.pulled[worker] = pulled
            with region("answer", worker=worker), suppress(ConnectionError):  # it died: `hear` will say so
                header = self.wire.tell(worker, Kind.PARAMETERS, pulled.step, now.version)
                self.sent[worker] = [header, self.wire.send(worker, self.newest)]

    # -- checkpoints --------------------------------------------------------------------------------------------

    def _save(self, checkpoint: Checkpoint) -> None:
        state = {
            "layout": self.layout,
            "version": self.standing.version,
            "latest": self.standing.latest,
            "parameters": self.newest,
            "kind": type(self.optimizer).__name__,
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict() if self.schedule else None,
        }
        with region("checkpoint", version=self.standing.version):
            checkpoint.save(state, self.rank, self.standing.version, self.servers)

    def _resume(self, checkpoint: Checkpoint) -> None:
        state = checkpoint.load(self.rank, self.servers)
        if state is None:
            return
        if problem := difference(self.layout, state["layout"]):
            raise ValueError(
                f"{checkpoint.folder} holds the checkpoint of another model ({problem}): take an empty folder"
            )
        if state["kind"] != type(self.optimizer).__name__:
            ours = type(self.optimizer).__name__
            raise ValueError(f"{checkpoint.folder} was saved with {state['kind']}, not {ours}: take an empty folder")
        self.standing.version = state["version"]
        self.standing.latest |= {w: step for w, step in state["latest"].items() if w in self.standing.latest}
        self.shard.load(state["parameters"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.schedule and state["schedule"]:
            self.schedule.load_state_dict(state["schedule"])
