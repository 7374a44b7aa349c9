"""A class does the actions; nothing that it sends is waited for before the end, and it is kept until then."""

from collections import deque

import torch
import torch.distributed as dist


def shares(sizes):
    return (torch.tensor(sizes, dtype=torch.float64) / sum(sizes)).tolist()


def forward(stage, m, inputs, kept, loss, share):
    outputs = stage(inputs)
    result = outputs if loss is None else loss(outputs, m) * share
    kept.update({m: (inputs, result)})
    return result.detach()


def backward(m, gradient, kept):
    inputs, outputs = kept.pop(m)
    wanted = [inputs] if inputs.requires_grad else []
    ones = torch.ones_like(outputs) if gradient is None else gradient
    torch.autograd.backward([outputs], [ones])
    return wanted[0].grad if wanted else None


class Walk:
    def __init__(self, stage, actions, inputs, sizes, loss):
        self.stage, self.actions, self.inputs, self.loss = stage, deque(actions), inputs, loss
        self.shares, self.kept, self.sends = shares(sizes), {}, []
        self.rank, self.last = dist.get_rank(), dist.get_world_size() - 1

    def send(self, tensor, to):
        if 0 <= to <= self.last:
            self.sends.append((dist.isend(tensor, to), tensor))

    def receive(self, tensor, source):
        work = dist.irecv(tensor, source)
        work.wait()
        return tensor

    def do(self, kind, m):
        if kind == "F":
            x = self.inputs(m)
            if self.rank:
                x = self.receive(x, self.rank - 1).requires_grad_()
            self.send(forward(self.stage, m, x, self.kept, self.loss, self.shares[m]), self.rank + 1)
        else:
            gradient = None
            if self.rank < self.last:
                gradient = self.receive(torch.empty(self.kept[m][1].shape, dtype=torch.float64), self.rank + 1)
            self.send(backward(m, gradient, self.kept), self.rank - 1)


def step(stage, actions, inputs, sizes, loss):
    walk = Walk(stage, actions, inputs, sizes, loss)
    while walk.actions:
        walk.do(*walk.actions.popleft())
    for work, _ in walk.sends:
        work.wait()
