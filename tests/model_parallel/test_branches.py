"""An Inception block whose arms lie on different ranks is the undivided block."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from divided_models import same
from torch import nn

from dtcourse import RankError
from dtcourse.events import COLLECTIVE
from dtcourse.model_parallel.branches import ParallelBranches, inception_arms

WORLDS = [1, 2, 3, 4]
CHANNELS, OUT = 5, [3, 7, 2, 4]  # of the inputs, of each arm


def arms() -> list[nn.Module]:
    torch.manual_seed(6)
    return [arm.double() for arm in inception_arms(CHANNELS, one=3, three=(4, 7), five=(2, 2), pool=4)]


def around() -> tuple[nn.Module, nn.Module]:
    """What stands before and after the block, on all ranks."""
    torch.manual_seed(7)
    return nn.Conv2d(3, CHANNELS, 3, stride=2).double(), nn.Conv2d(sum(OUT), 2, 1).double()


def images() -> torch.Tensor:
    return torch.randn(4, 3, 13, 11, generator=torch.Generator().manual_seed(8), dtype=torch.double)


class Undivided(nn.Module):
    def __init__(self, arms):
        super().__init__()
        self.arms = nn.ModuleList(arms)

    def forward(self, x):
        return torch.cat([arm(x) for arm in self.arms], 1)


def forward_and_backward(block):
    before, after = around()
    outputs = after(block(before(images())))
    (outputs * torch.linspace(-1, 2, outputs.numel(), dtype=torch.double).view_as(outputs)).sum().backward()
    gradients = [[p.grad for p in module.parameters()] for module in (before, after)]
    return outputs.detach(), gradients, [[p.grad for p in arm.parameters()] for arm in block.arms]


@pytest.mark.parametrize("world", WORLDS)
def test_outputs_gradients_and_bytes(cluster, world):
    run = cluster(world).run(lambda: forward_and_backward(ParallelBranches(arms())))
    outputs, around_it, of_arms = forward_and_backward(Undivided(arms()))
    of_ranks = torch.arange(4).tensor_split(world)
    for rank, (ours, our_around, our_arms) in enumerate(run.results):
        assert same([ours], [outputs])
        assert all(same(a, b) for a, b in zip(our_around, around_it, strict=True))
        assert all(same(a, of_arms[number]) for a, number in zip(our_arms, of_ranks[rank], strict=True))
        pixels = 4 * 6 * 5  # of all samples
        assert run.bytes_sent(rank) == (world - 1) * 8 * pixels * sum(OUT[number] for number in of_ranks[rank])
        collectives = [e for e in run.events if e.rank == rank and e.kind == COLLECTIVE and not e.control]
        assert [(e.op, e.bytes) for e in collectives] == [("all_reduce", 8 * pixels * CHANNELS)]
        assert [e.labels["arm"] for e in run.regions("arm", rank)] == of_ranks[rank].tolist()


def test_the_arms_have_the_channels_they_should_and_end_in_a_relu():
    x = around()[0](images())
    assert [tuple(arm(x).shape) for arm in arms()] == [(4, channels, 6, 5) for channels in OUT]
    assert all(arm(x).min() == 0 for arm in arms())


def test_batch_norm_and_bfloat16_and_a_subgroup(cluster):
    def block():
        torch.manual_seed(9)
        return [nn.Sequential(nn.Conv2d(3, n, 1), nn.BatchNorm2d(n)).bfloat16() for n in (1, 2, 3)]

    def job():
        group = dist.new_group([3, 1])
        return ParallelBranches(block(), group)(images().bfloat16()).detach() if dist.get_rank() % 2 else None

    expected = Undivided(block())(images().bfloat16()).detach()
    results = cluster(4).run(job).results
    assert torch.equal(results[1], expected) and torch.equal(results[3], expected)


def test_arms_after_a_batch_without_gradients(cluster):
    def job():
        block = ParallelBranches(arms())
        with torch.no_grad():
            return block(around()[0](images()))

    with torch.no_grad():
        expected = Undivided(arms())(around()[0](images()))
    assert all(same([ours], [expected]) for ours in cluster(3).run(job).results)


# -- what goes wrong -------------------------------------------------------------------------------------------------


def test_more_ranks_than_arms(cluster):
    with pytest.raises(RankError, match="3 in units of 1 cannot be shared by 4 ranks"):
        cluster(4).run(lambda: ParallelBranches(arms()[:3]))


def test_arms_that_do_not_fit_are_named(cluster):
    def job():
        block = ParallelBranches([nn.Conv2d(3, 2, 1), nn.Conv2d(3, 4, 3)])  # no padding
        return block(torch.ones(2, 3, 8, 8))

    with pytest.raises(RankError) as caught:
        cluster(2).run(job)
    assert "rank 0 return float32 (2, 2, 8, 8), those of rank 1 float32 (2, 4, 6, 6)" in str(caught.value)
    assert "return block(torch.ones(2, 3, 8, 8))" in str(caught.value).splitlines()[1]


def test_an_arm_that_raises_is_named(cluster):
    def job():
        return ParallelBranches([nn.Conv2d(3, 2, 1), nn.Identity(), nn.Conv2d(4, 2, 1)])(torch.ones(2, 3, 8, 8))

    with pytest.raises(RankError, match="expected input") as caught:
        cluster(2).run(job)
    assert caught.value.rank == 1
    assert "In arm 2 of 3 (rank 1), whose inputs were (2, 3, 8, 8)." in str(caught.value)
