"""Recomputation: keep the inputs of a stage instead of all its activations, and compute those again in the backward.

    outputs = recomputed(module, inputs)

Cost: one more forward, in each backward: a stage takes 2F + I + W for a micro-batch. Memory: an activation in flight is
the stage's inputs and nothing else. A backward in two halves recomputes in the first; until the second, the layers keep
what their weight gradients are made of (`split_backward`).

The second forward must be the first one again, and leave no trace:

drop-out      draws what it drew: the state of the random numbers is put back, and afterwards set as if nothing had
              happened. So gradients are, bit for bit, those without recomputation.
batch norm    normalises again by the micro-batch's own statistics, but its running statistics, as all that a module
              keeps in buffers, have been updated once and are not updated again.

What those layers compute in a pipeline, with or without recomputation:

drop-out      a rank draws in the order of its forwards. With one stage a rank, all our schedules go through the
              micro-batches from 0 to M-1, so all give the same gradients: those of one process that goes through the
              stages with the random state of each rank and, in a stage, through the micro-batches. Interleaved, the
              stages of a rank share one random state, and take turns. Never will it be the mask that one process draws
              for the whole batch. Seed each rank differently, or stages of the same size drop the same units.
batch norm    sees a micro-batch, never the batch. The gradients are those of one process that normalises each
              micro-batch by itself, and the running statistics are updated M times a batch: the momentum counts M
              times, and the smaller the micro-batches, the noisier it all is.

Source: Chen et al., "Training deep nets with sublinear memory cost" (2016); Huang et al., "GPipe" (2019).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint


def recomputed(module: nn.Module, *inputs: Any) -> Any:
    """What `module(*inputs)` returns, keeping no more than the inputs for the backward, which calls the module again.

    The inputs, the weights and whether the module trains must then be what they were.
    """
    return checkpoint(module, *inputs, use_reentrant=False, context_fn=lambda: (nullcontext(), buffers_kept(module)))


@contextmanager
def buffers_kept(module: nn.Module) -> Iterator[None]:
    """In this block the module works on copies of its buffers, so that nothing it does to them stays."""
    buffers = [(layer, name, own) for layer in module.modules() for name, own in layer.named_buffers(recurse=False)]
    for layer, name, own in buffers:
        setattr(layer, name, own.clone())
    try:
        yield
    finally:
        for layer, name, own in buffers:
            setattr(layer, name, own)
