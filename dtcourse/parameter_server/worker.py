"""A worker: pulls the parameters, computes gradients on data of its own, pushes them. It keeps no optimizer.

    worker = Worker(model, servers=1)
    for x, y in batches:
        worker.pull()                                  # the newest parameters, into the model
        loss = cross_entropy(model(x), y)
        loss.backward()
        worker.push(samples=len(x), loss=loss)         # the gradients go to the servers
    worker.finish()

The reply to a push is the next pull: the server sends the parameters as soon as its policy lets this worker go on, and
`pull` takes them in. So n steps cost n times the gradients out and n + 1 times the parameters in, once before the first
step and once after the last: `finish` brings the newest parameters home.

Source: Li et al., "Scaling distributed machine learning with the parameter server" (2014).
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn

from dtcourse.events import mark, region
from dtcourse.parameter_server.messages import Header, Kind, Wire
from dtcourse.parameter_server.shards import check_roles, difference, layout, shards


class Worker:
    """The worker's side, on ranks servers, servers+1, ... `model` has to be built as on the servers.

    step      the step that began with the latest pull: under Synchronous and BackupWorkers the same for all workers
              (the version), under the other policies this worker's own count. After a resume it begins above 0.
    version   how many updates server 0 had made to the parameters of the latest pull; `versions` has all servers'

    Raises ValueError if this rank should serve, or if the model differs from the servers'.
    """

    def __init__(self, model: nn.Module, *, servers: int = 1) -> None:
        check_roles(servers, serves=False)
        self.step, self.versions = -1, [-1] * servers
        self._servers = range(servers)
        self._shards = shards(model, servers)
        self._round = [(dist.get_rank() + i) % servers for i in self._servers]  # or all would queue at server 0
        self._replies = 0  # on their way: 1 after a push, until the pull
        self._pulled = self._finished = False
        self._wire = Wire(self._shards[0].parameters[0].device)
        self._greet(layout(model, servers))

    @property
    def version(self) -> int:
        return self.versions[0]

    def pull(self) -> int:
        """Take the newest parameters into the model, as soon as the policy lets this worker begin. Returns `step`.

        `while worker.pull() < n` makes n steps. A second pull in one step brings the newest parameters again.
        """
        if self._finished:
            raise RuntimeError("this worker has finished: pull() before finish()")
        with region("pull"), _servers_live():
            if not self._replies:
                self._tell(Kind.PULL)
            self._take_replies()
        return self.step

    def push(self, samples: int, loss: torch.Tensor | float | None = None) -> None:
        """Send the model's gradients to the servers, and clear them.

        `samples`: how many samples they are the mean of, their weight in an average. `loss`, if given, is marked with
        step and version. A parameter without a gradient sends zeros.

        Raises RuntimeError without a pull since the last push, and if no parameter has a gradient; ValueError for
        samples < 1 (whoever has no samples left has finished); TypeError if they are no whole number.
        """
        samples = self._checked_samples(samples)
        if loss is not None:
            mark("loss", value=loss, step=self.step, version=self.version)
        with region("push", step=self.step), _servers_live():
            for server in self._round:
                header = self._wire.tell(server, Kind.PUSH, self.step, self.versions[server], samples)
                self._wire.send(server, self._shards[server].flat_gradient()).wait()
                header.wait()
        for parameter in self._parameters():
            parameter.grad = None
        self._pulled, self._replies = False, 1

    def finish(self) -> None:
        """Leave, with the newest parameters in the model. The servers end when all workers have finished."""
        if self._finished:
            return
        self._finished = True
        with region("finish"), _servers_live():
            sent = [self._wire.tell(server, Kind.FINISH) for server in self._servers]
            if self._replies:
                self._take_replies()
            for one in sent:
                one.wait()

    # -- inside -------------------------------------------------------------------------------------------------

    def _take_replies(self) -> None:
        headers: dict[int, Header] = {}
        for server in self._round:
            shard = self._shards[server]
            headers[server], flat = self._wire.hear(server), shard.empty()
            self._wire.receive(server, flat).wait()
            shard.load(flat)
        self.step, self.versions = headers[0].step, [headers[server].version for server in self._servers]
        self._pulled, self._replies = True, 0

    def _greet(self, ours: str) -> None:
        """Compare the models before anything else, and leave if they differ: then the servers wait for nothing."""
        self._tell(Kind.HELLO)
        for server, theirs in [(server, self._wire.hear_text(server)) for server in self._servers]:
            if problem := difference(ours, theirs):
                self.finish()
                raise ValueError(
                    f"the model of worker {dist.get_rank()} is not that of server {server}: {problem}. "
                    "Build it in the same way on all ranks"
                )

    def _tell(self, kind: Kind) -> None:
        for sent in [self._wire.tell(server, kind) for server in self._servers]:
            sent.wait()

    def _checked_samples(self, samples: int) -> int:
        """Raises unless there is something to push."""
        if self._finished or not self._pulled:
            why = "this worker has finished" if self._finished else "there was no pull() since the last push"
            raise RuntimeError(f"{why}: gradients belong to the parameters that were pulled just before")
        try:
            samples = operator.index(samples)  # of NumPy or a tensor, too
        except TypeError:
            raise TypeError(f"samples={samples!r}: a gradient is the mean of a whole number of samples") from None
        if samples < 1:
            raise ValueError(f"samples={samples}: a gradient is the mean of one sample or more")
        if all(parameter.grad is None for parameter in self._parameters()):
            raise RuntimeError("no parameter has a gradient: call loss.backward() before push()")
        return samples

    def _parameters(self) -> Iterator[nn.Parameter]:
        return (parameter for shard in self._shards for parameter in shard.parameters)


@contextmanager
def _servers_live() -> Iterator[None]:
    try:
        yield
    except ConnectionError as problem:
        gone = getattr(problem, "rank", None)
        raise ConnectionError(
            f"server {'' if gone is None else gone} is gone, and with it its part of the parameters. "
            "Start again: servers with a checkpoint begin from there"
        ) from problem
