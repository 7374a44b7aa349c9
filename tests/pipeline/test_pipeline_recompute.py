"""Recomputation changes the memory and nothing else: gradients, random numbers, running statistics are as without."""

import copy

import pytest
import torch
from torch import nn

from dtcourse.pipeline.recompute import recomputed
from dtcourse.pipeline.split_backward import deferrable, input_half

DOUBLE = torch.double


def model() -> nn.Module:
    torch.manual_seed(1)
    layers = [nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.ReLU(), nn.Linear(6, 6), nn.Dropout(0.3)]
    layers += [nn.Unflatten(1, (2, 3)), nn.InstanceNorm1d(2, track_running_stats=True), nn.Flatten()]
    return nn.Sequential(*layers, nn.BatchNorm1d(6, momentum=None)).to(DOUBLE)


def microbatches(number: int = 3) -> list[torch.Tensor]:
    torch.manual_seed(2)
    return [torch.randn(5, 6, dtype=DOUBLE) for _ in range(number)]


def trained(module: nn.Module, call, first: bool, split: bool) -> dict[str, torch.Tensor]:
    """All forwards, then all backwards, of some micro-batches; all that this left behind."""
    inputs = [x.requires_grad_(not first) for x in microbatches()]
    torch.manual_seed(3)
    outputs = [call(module, x) for x in inputs]
    drawn_before = torch.get_rng_state()
    for y in outputs:
        if split:
            with input_half() as later:
                y.square().sum().backward()
            later.weight_half()
        else:
            y.square().sum().backward()
    assert torch.equal(torch.get_rng_state(), drawn_before)
    left = {f"output {m}": y.detach() for m, y in enumerate(outputs)} | dict(module.named_buffers())
    left |= {f"input {m}": x.grad for m, x in enumerate(inputs) if not first}
    return left | {f"{name}.grad": p.grad for name, p in module.named_parameters()} | {"next": torch.rand(1)}


@pytest.mark.parametrize("first", [False, True], ids=["a stage", "a first stage, whose input wants no gradient"])
@pytest.mark.parametrize("split", [False, True], ids=["in one", "in halves"])
def test_everything_is_bit_for_bit_as_without(first, split):
    plain = trained(model(), lambda module, x: module(x), first, split=False)
    again = trained(deferrable(model()) if split else model(), recomputed, first, split)
    assert plain.keys() == again.keys()
    for name, value in plain.items():
        assert torch.allclose(again[name], value, rtol=1e-12, atol=1e-12) if split else torch.equal(again[name], value)


def test_running_statistics_are_updated_once_a_microbatch_and_by_it_alone():
    module = model()
    trained(module, recomputed, first=False, split=False)
    assert module[1].num_batches_tracked == module[9].num_batches_tracked == 3
    mean = torch.zeros(6, dtype=DOUBLE)
    for x in microbatches():
        mean = 0.9 * mean + 0.1 * module[0](x).mean(0)
    assert torch.allclose(module[1].running_mean, mean)


def test_a_frozen_norm_and_a_module_that_evaluates():
    module = model().eval()
    before = copy.deepcopy(dict(module.named_buffers()))
    trained(module, recomputed, first=False, split=False)
    assert all(torch.equal(before[name], buffer) for name, buffer in module.named_buffers())


def test_only_the_inputs_are_kept():
    def kept(call) -> int:
        """The values of activations that the graph of a forward holds."""
        sizes = []

        def pack(saved: torch.Tensor) -> torch.Tensor:
            sizes.append(saved.numel() if saved.shape[:1] == (5,) else 0)  # of 5 samples: weights have 6 rows
            return saved

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
            call(model(), microbatches(1)[0].requires_grad_())
        return sum(sizes)

    assert kept(lambda module, x: module(x)) > 100
    assert kept(recomputed) == 5 * 6


def test_buffers_are_the_same_tensors_as_before_also_after_an_error():
    class Failing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls, self.layer = 0, nn.Linear(6, 6, dtype=DOUBLE)
            self.register_buffer("seen", torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls, self.seen = self.calls + 1, self.seen + 1
            if self.calls == 2:
                raise ZeroDivisionError("the second time")
            return self.layer(x)

    module = Failing()
    y = recomputed(module, microbatches(1)[0])
    seen = module.seen
    with pytest.raises(ZeroDivisionError, match="the second time"):
        y.sum().backward()
    assert module.seen is seen
    assert seen == 1


def test_several_inputs_and_outputs():
    class Two(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x.sin() * y, y.exp()

    x, y = (torch.ones(3, requires_grad=True) for _ in range(2))
    torch.autograd.backward(recomputed(Two(), x, y), (torch.ones(3), torch.ones(3)))
    a, b = (torch.ones(3, requires_grad=True) for _ in range(2))
    torch.autograd.backward(Two()(a, b), (torch.ones(3), torch.ones(3)))
    assert torch.equal(x.grad, a.grad)
    assert torch.equal(y.grad, b.grad)
