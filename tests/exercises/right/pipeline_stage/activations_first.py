"""Sends and receives that block: in each exchange what goes forward comes first. A leaf of its own for the inputs."""

import torch
import torch.distributed as dist


def shares(sizes):
    total = float(sum(sizes))
    return [size / total for size in sizes]


def forward(stage, m, inputs, kept, loss, share):
    leaf = inputs.detach().requires_grad_(inputs.requires_grad)
    outputs = stage(leaf)
    if loss:
        outputs = loss(outputs, m) * share
    kept[m] = [leaf, outputs]
    return outputs.data


def backward(m, gradient, kept):
    leaf, outputs = kept.pop(m)
    outputs.backward(gradient=gradient)
    return leaf.grad


def exchange(sent, to, received, source):
    rank, world = dist.get_rank(), dist.get_world_size()
    ways = ["receive", "send"] if to == source == rank - 1 else ["send", "receive"]
    for way in ways:
        if way == "send" and to is not None and 0 <= to < world:
            dist.send(sent, to)
        if way == "receive" and source is not None and 0 <= source < world:
            dist.recv(received, source)


def step(stage, actions, inputs, sizes, loss):
    rank, world = dist.get_rank(), dist.get_world_size()
    kept, made, to = {}, None, None
    for kind, m in actions:
        if kind == "F":
            tensor, source = inputs(m), rank - 1
        else:
            tensor = torch.empty_like(kept[m][1]) if rank + 1 < world else None
            source = rank + 1
        exchange(made, to, tensor, source)
        if kind == "F":
            made = forward(stage, m, tensor.requires_grad_(rank > 0), kept, loss, shares(sizes)[m])
            to = rank + 1
        else:
            made = backward(m, tensor, kept)
            to = rank - 1
    exchange(made, to, None, None)
