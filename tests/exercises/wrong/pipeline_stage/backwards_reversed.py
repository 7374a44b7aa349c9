"""Goes through the backwards from the last micro-batch to the first."""
# message: nothing is kept under 2; stage [01] has done F0( F1)? until then

import torch
import torch.distributed as dist


def shares(sizes):
    return [size / sum(sizes) for size in sizes]


def forward(stage, m, inputs, kept, loss, share):
    outputs = stage(inputs)
    if loss is not None:
        outputs = share * loss(outputs, m)
    kept[m] = inputs, outputs
    return outputs.detach()


def backward(m, gradient, kept):
    inputs, outputs = kept.pop(m)
    outputs.backward(gradient)
    return inputs.grad


def exchange(sent, to, received, source):
    operations = []
    if to is not None:
        operations.append(dist.P2POp(dist.isend, sent.contiguous(), to))
    if source is not None:
        operations.append(dist.P2POp(dist.irecv, received, source))
    for work in dist.batch_isend_irecv(operations) if operations else ():
        work.wait()


def step(stage, actions, inputs, sizes, loss):
    rank, world = dist.get_rank(), dist.get_world_size()
    before = rank - 1 if rank > 0 else None
    after = rank + 1 if rank < world - 1 else None
    share, kept = shares(sizes), {}
    made, to = None, None
    back = [m for kind, m in actions if kind == "B"]
    for kind, m in actions:
        m = back.pop() if kind == "B" else m
        if kind == "F":
            x = inputs(m)
            exchange(made, to, x, before)
            if before is not None:
                x.requires_grad_()
            made, to = forward(stage, m, x, kept, loss, share[m]), after
        else:
            gradient = None if after is None else torch.empty_like(kept[m][1])
            exchange(made, to, gradient, after)
            made, to = backward(m, gradient, kept), before
    exchange(made, to, None, None)
