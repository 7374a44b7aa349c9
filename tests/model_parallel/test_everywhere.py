"""The three ways to divide a model on other backends, on an emulated link, and where NCCL's rules hold."""

from __future__ import annotations

import pytest
import torch
from divided_models import block, by_layers, same, tokens, undivided
from torch import nn

from dtcourse import Cluster, Link
from dtcourse.model_parallel.branches import ParallelBranches, inception_arms
from dtcourse.model_parallel.layers import Stage, own_layers
from dtcourse.model_parallel.tensors import parallel_block

gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA GPU here")]
PLACES = {
    "gloo": {"backend": "gloo"},
    "strict": {"strict": True},
    "link": {"link": Link("1 Gbit/s", "50 us")},
    "cuda": {"device": "cuda"},
}


@pytest.fixture(scope="module", params=[pytest.param(p, marks=gpu if p == "cuda" else []) for p in PLACES])
def anywhere(request):
    with Cluster(3, **PLACES[request.param]) as cluster:
        yield cluster


def test_layers(anywhere):
    run = anywhere.run(by_layers, [2, 1, 2], [8, 3])
    outputs, gradients = anywhere.run(undivided, [8, 3]).results[0]  # made there: a GPU draws other weights
    assert same(run.results[-1][0], outputs)
    assert same([g for result in run.results for g in result[1]], gradients)


class Turned(nn.Module):
    def forward(self, x):
        return x.t()


def test_activations_and_gradients_that_are_not_contiguous(anywhere):
    def job():
        stage = Stage(own_layers([Turned(), nn.Tanh(), Turned()], [1, 1, 1]))
        x = torch.arange(6.0).view(2, 3).requires_grad_()
        outputs = stage.forward(x)
        stage.backward((outputs * torch.arange(6.0).view(2, 3)).sum() if stage.is_last else None)
        return x.grad

    expected = torch.arange(6.0) * (1 - torch.arange(6.0).tanh() ** 2)
    torch.testing.assert_close(anywhere.run(job).results[0], expected.view(2, 3))


def input_gradient(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    x.requires_grad_()
    module(x).square().sum().backward()
    return x.grad


def test_tensors(anywhere):
    expected = anywhere.run(lambda: input_gradient(block(), tokens())).results[0]
    results = anywhere.run(lambda: input_gradient(parallel_block(block()), tokens())).results
    assert all(same([ours], [expected]) for ours in results)


class Joined(nn.Module):
    def __init__(self, arms):
        super().__init__()
        self.arms = nn.ModuleList(arms)

    def forward(self, x):
        return torch.cat([arm(x) for arm in self.arms], 1)


def test_branches(anywhere):
    def arms():
        torch.manual_seed(0)
        return [arm.double() for arm in inception_arms(3, one=3, three=(4, 7), five=(2, 2), pool=4)]

    def images():
        return torch.randn(2, 3, 6, 5, generator=torch.Generator().manual_seed(1), dtype=torch.double)

    expected = anywhere.run(lambda: input_gradient(Joined(arms()), images())).results[0]
    results = anywhere.run(lambda: input_gradient(ParallelBranches(arms()), images())).results
    assert all(same([ours], [expected]) for ours in results)
