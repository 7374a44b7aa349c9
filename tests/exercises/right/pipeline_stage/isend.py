"""Sends without waiting, and waits for all sends at the end; receives what an action needs right before it."""

import torch
import torch.distributed as dist


def shares(sizes):
    whole = sum(sizes)
    return [size / whole for size in sizes]


def forward(stage, m, inputs, kept, loss, share):
    outputs = stage(inputs) if loss is None else loss(stage(inputs), m).mul(share)
    kept[m] = (inputs, outputs)
    return outputs.detach().clone()


def backward(m, gradient, kept):
    inputs, outputs = kept[m]
    del kept[m]
    torch.autograd.backward(outputs, gradient)
    return inputs.grad


def step(stage, actions, inputs, sizes, loss):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    kept, sent = {}, []
    for kind, m in actions:
        if kind == "F":
            x = inputs(m)
            if rank > 0:
                dist.recv(x, rank - 1)
                x.requires_grad_()
            outputs = forward(stage, m, x, kept, loss, shares(sizes)[m])
            if rank < last:
                sent.append(dist.isend(outputs, rank + 1))
        else:
            gradient = None
            if rank < last:
                gradient = torch.empty_like(kept[m][1])
                dist.recv(gradient, rank + 1)
            gradient = backward(m, gradient, kept)
            if rank > 0:
                sent.append(dist.isend(gradient, rank - 1))
    for work in sent:
        work.wait()
