"""An emulated layer sleeps where it should, and computes what its module computes."""

import copy
import time

import pytest
import torch
from torch import nn

from dtcourse.pipeline.emulated import Emulated
from dtcourse.pipeline.recompute import recomputed
from dtcourse.pipeline.split_backward import deferrable, input_half


@pytest.fixture
def slept(monkeypatch):
    """The seconds that were asked for, one after the other; nobody waits for them."""
    seconds = []
    monkeypatch.setattr(time, "sleep", seconds.append)
    return seconds


@pytest.mark.parametrize("wants_gradient", [True, False], ids=["a stage", "a first stage"])
def test_in_halves_each_takes_its_time(slept, wants_gradient):
    layer = deferrable(Emulated(nn.Linear(3, 3), forward=1, input=2, weight=3))
    y = layer(torch.ones(2, 3, requires_grad=wants_gradient))
    assert slept == [1]
    with input_half() as later:
        y.sum().backward()
    assert slept == [1, 2]
    later.weight_half()
    assert slept == [1, 2, 3]
    assert layer.module.weight.grad is not None


def test_in_one_it_takes_both(slept):
    Emulated(nn.Linear(3, 3), forward=1, input=2, weight=3)(torch.ones(2, 3)).sum().backward()
    assert slept == [1, 2, 3]


def test_recomputed_it_takes_its_forward_again(slept):
    layer = Emulated(nn.Linear(3, 3), forward=1, input=2, weight=3)
    y = recomputed(layer, torch.ones(2, 3, requires_grad=True))
    assert slept == [1]
    y.sum().backward()
    assert sorted(slept) == [1, 1, 2, 3]


def test_it_really_sleeps():
    start = time.perf_counter()
    Emulated(nn.Linear(3, 3), forward=0.01, input=0.01, weight=0.01)(torch.ones(2, 3)).sum().backward()
    assert time.perf_counter() - start >= 0.03


def test_values_and_gradients_are_those_of_the_module(slept):
    layer = nn.Linear(3, 3)
    emulated = Emulated(copy.deepcopy(layer), 0, 0, 0)
    x, z = (torch.ones(2, 3, requires_grad=True) for _ in range(2))
    y, w = layer(x), emulated(z)
    assert torch.equal(y, w)
    for outputs in (y, w):
        outputs.square().sum().backward()
    assert torch.equal(x.grad, z.grad)
    assert torch.equal(layer.weight.grad, emulated.module.weight.grad)


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf")])
def test_a_time_that_is_none_is_refused(seconds):
    with pytest.raises(ValueError, match=r"weight = .*0 or more"):
        Emulated(nn.Linear(3, 3), forward=0, input=0, weight=seconds)
