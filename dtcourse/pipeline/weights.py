"""Which weights a micro-batch meets in an asynchronous pipeline: what a stage does about the updates in between.

Under `schedules.pipedream` a stage updates its weights after every backward. So between the forward of a micro-batch on
stage s of P and its backward, P-1-s updates by others pass. Of a stage whose weights are W, and were W' in the forward:

    policy      forward with   backward with   copies of W   the gradient is
    Naive       W              W               1             of no weights: W' made the activations, W takes them back
    Stashing    W              W'              P-s           right for W', and P-1-s updates late
    SpecTrain   W - a lr v     W - b lr v      1, in F and   about that of the weights to come, the same at both ends
                                               in B one more

SpecTrain guesses where the weights will be from where they are heading: v is the momentum, and one update moves the
weights by -lr v. a = floor(s/2) + P-1-s updates ahead in the forward, b = floor(s/2) in the backward: the P-1-s
updates between the two are all that differs, so both aim at the same weights.

A policy is used like this, once for each micro-batch (`runner.Pipeline` does):

    output = weights.call(microbatch, inputs)
    with weights.backward(microbatch):
        torch.autograd.backward(output, gradient)      # leaving the block updates the weights

How it works: autograd refuses to go back through weights that an update has changed since. So a forward runs with
aliases: leaves of their own that share the memory of the parameters, but not the count of changes. Whoever then changes
that memory decides what the backward meets.

What is not a weight has no versions. A drop-out mask is drawn in the forward and kept for its backward; a batch norm
goes back with the statistics of its own micro-batch; running statistics belong to the stage: each forward moves them,
in the order in which they come.

Sources: Harlap, Narayanan et al., "PipeDream: fast and efficient pipeline parallel DNN training" (2018), and Narayanan
et al. (SOSP 2019), for stashing; Chen, Yang, Cheng, "Efficient and robust parallel DNN training through model
parallelism on multi-GPU platform" (2018), for SpecTrain.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.func import functional_call


class Met(NamedTuple):
    """What a micro-batch met in its forward: the version of the weights, and their aliases by name."""

    version: int
    aliases: dict[str, torch.Tensor]


class Naive:
    """No care taken: whatever the weights are when an action comes.

    `optimizer` has parameters of `module`, the layers of one stage, and of no other stage: ValueError otherwise. It may
    be any that steps without a closure.
    """

    def __init__(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        require_own_parameters(module, optimizer)
        self.module, self.optimizer = module, optimizer
        self.updates = 0  # how many the weights have had
        self._in_flight: dict[int, Met] = {}  # by micro-batch, from its forward to its backward

    def version(self, microbatch: int) -> int:
        """The number of updates in the weights that an action of this micro-batch meets now."""
        return self.updates

    def call(self, microbatch: int, *inputs: Any) -> Any:
        """What the module returns for `inputs`, on the weights for the forward of this micro-batch."""
        parameters = self.module.named_parameters()
        aliases = {name: weight.data.requires_grad_(weight.requires_grad) for name, weight in parameters}
        self._in_flight[microbatch] = Met(self.updates, aliases)
        return functional_call(self.module, aliases, inputs)

    @contextmanager
    def backward(self, microbatch: int) -> Iterator[None]:
        """Go back within this block. Leaving it puts the gradient of this micro-batch, alone, into `.grad` and steps.

        Raises ValueError if the micro-batch had no forward, or has had its backward.
        """
        if microbatch not in self._in_flight:
            flying = ", ".join(map(str, self._in_flight)) or "none"
            raise ValueError(
                f"backward of micro-batch {microbatch}, which waits for none: in flight, between call() and "
                f"backward(), are: {flying}"
            )
        yield
        self._take_gradient(self._in_flight.pop(microbatch).aliases)
        self._update()
        self.updates += 1

    def _take_gradient(self, aliases: dict[str, torch.Tensor]) -> None:
        for name, weight in self.module.named_parameters():
            weight.grad = aliases[name].grad
            aliases[name].data = weight.new_empty(0)  # or whoever still has the output would keep these weights

    def _update(self) -> None:
        self.optimizer.step()  # in the memory of the aliases: the micro-batches in flight will meet the new weights


class Stashing(Naive):
    """PipeDream's weight stashing: the backward meets the weights of its forward.

    A version is copied only if the update would overwrite what somebody in flight still needs, and it goes with the
    last who does. The stages do not agree on a version: stage s runs a micro-batch on weights P-1-s updates old.
    """

    def version(self, microbatch: int) -> int:
        met = self._in_flight.get(microbatch)
        return self.updates if met is None else met.version

    def _update(self) -> None:
        if any(met.version == self.updates for met in self._in_flight.values()):
            for weight in self.module.parameters():
                weight.data = weight.data.clone()  # the update has memory of its own; the aliases keep the old
        super()._update()


class SpecTrain(Naive):
    """Run forward and backward on the weights predicted for the same update; update the true ones.

    v is the momentum buffer of `torch.optim.SGD`. With `dampening` equal to `momentum` (g) it is the paper's smoothed
    gradient, v = g v + (1-g) gradient; with any other dampening lr v is still the next move, but for the newest
    gradient. So a weight decay is predicted as the buffer has it, at the weights of the past; lr is the one each
    parameter group has now, although a scheduler may change it before the weights get there. Before the first
    update there is no v, and the prediction is W.

    `stage` of `stages` counts from 0. TypeError for other optimizers, ValueError for SGD without momentum, or with
    Nesterov's: they do not move by lr v.
    """

    def __init__(self, module: nn.Module, optimizer: torch.optim.Optimizer, stage: int, stages: int) -> None:
        if not 0 <= stage < stages:
            raise ValueError(f"SpecTrain: no stage {stage} of {stages}; they are 0 to {stages - 1}")
        require_momentum(optimizer)
        super().__init__(module, optimizer)
        self.ahead_in_forward = stage // 2 + stages - 1 - stage
        self.ahead_in_backward = stage // 2

    def call(self, microbatch: int, *inputs: Any) -> Any:
        with self._predicted(self.ahead_in_forward):
            return super().call(microbatch, *inputs)

    @contextmanager
    def backward(self, microbatch: int) -> Iterator[None]:
        with super().backward(microbatch), self._predicted(self.ahead_in_backward):
            yield  # the true weights come back first, then the outer block updates them

    @contextmanager
    def _predicted(self, updates: int) -> Iterator[None]:
        """Within the block the weights are those expected so many updates from now."""
        true = [weight.data.clone() for weight in self.module.parameters()]
        for group in self.optimizer.param_groups:
            for weight in group["params"]:
                v = self.optimizer.state[weight].get("momentum_buffer")
                if v is not None:
                    weight.data -= updates * group["lr"] * v
        try:
            yield
        finally:
            for weight, value in zip(self.module.parameters(), true, strict=True):
                weight.data.copy_(value)


def require_own_parameters(module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Refuse an optimizer with parameters that are not the stage's: each update would move them as well."""
    own = set(module.parameters())
    strangers = sum(weight not in own for group in optimizer.param_groups for weight in group["params"])
    if strangers:
        raise ValueError(
            f"the optimizer has {strangers} parameters that are not of this stage's module. Each stage updates at its "
            "own time and needs an optimizer of its own, over module.parameters()"
        )


def require_momentum(optimizer: torch.optim.Optimizer) -> None:
    """Refuse what SpecTrain cannot predict."""
    name = type(optimizer).__name__
    advice = "Take torch.optim.SGD(..., momentum=0.9, dampening=0.9), which moves as far as SGD without momentum"
    if not isinstance(optimizer, torch.optim.SGD):
        raise TypeError(
            f"SpecTrain predicts from the momentum of SGD, and {name} moves its weights otherwise. {advice}"
        )
    for group in optimizer.param_groups:
        if not group["momentum"] or group["nesterov"]:
            seen = f"momentum={group['momentum']}, nesterov={group['nesterov']}"
            raise ValueError(
                f"SpecTrain predicts that an update moves the weights by lr times momentum, and {seen}. {advice}"
            )
