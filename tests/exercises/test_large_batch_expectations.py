"""Expectations of the exercise `large_batch`: no rate, gradient or velocity may be another; what is said is true."""

import pytest
import test_large_batch as asked  # what the exercise asks for
import torch

from dtcourse import Run
from dtcourse.grading.mixtures import same

SCALED = [(0.1, 256, 32, 256, 1), (0.05, 32, 32, 4, 2), (0.4, 256, 16, 2, 1)]
WARM = [(i, 0.1, 0.8, n) for n in (0, 1, 4) for i in range(7)]
SIZES = [[2], [1, 3, 2], []]  # of the micro-batches of each rank


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Tensors so small are faster on one core, on a busy machine by far."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def right_rates():
    yield from ((asked.wrong_scaling, case, case[0] * case[2] * case[3] * case[4] / case[1]) for case in SCALED)
    yield from ((asked.wrong_warm_up, case, asked.warm_up_rate(*case)) for case in WARM)


def gradients(sizes, mixture):
    """A run in which each rank ends with this mixture: micro-batch and "old" -> amount."""
    everybody = {
        f"g[{rank},{m}]": asked.one_step(asked.own_gradient, [micro])
        for rank, own in enumerate(asked.micro_batches_of(sizes))
        for m, micro in enumerate(own)
    }
    everybody["old"] = [asked.old_gradient(parameter) for parameter in asked.new_model().parameters()]
    mixed = [
        sum(amount * gradient for amount, gradient in zip(map(mixture.get, everybody, [0] * 99), column, strict=True))
        for column in zip(*everybody.values(), strict=True)
    ]
    return Run(len(sizes), function="step_gradients", results=[[g.clone() for g in mixed] for _ in sizes])


def right_mixture(sizes):
    total = sum(map(sum, sizes))
    return {f"g[{rank},{m}]": n / total for rank, own in enumerate(sizes) for m, n in enumerate(own)}


def test_rates():
    for wrong, case, rate in right_rates():
        for equal in (rate, torch.tensor(rate)):
            assert list(wrong([case], [(equal, case)])) == []
        for other in (rate * 1.001, rate + 1e-3, None, torch.ones(2)):
            assert len(list(wrong([case], [(other, case)]))) == 1


def test_gradients():
    run = gradients(SIZES, right_mixture(SIZES))
    assert list(asked.summed_up(run, SIZES)) == []
    for rank, changed in enumerate(run.results):
        changed[rank].flatten()[-1] += 1e-3
        assert [finding.rank for finding in asked.summed_up(run, SIZES)] == [rank]
        changed[rank].flatten()[-1] -= 1e-3


@pytest.mark.parametrize("sizes", [[[1, 4], [2, 1], [5, 3]], SIZES])
def test_each_mistake_with_gradients_is_told_as_it_is(sizes):
    all_mistakes = asked.mistakes(sizes, 0, range(len(sizes)))
    for mistake in all_mistakes:
        if found := next(asked.summed_up(gradients(sizes, mistake.mixture), sizes), None):  # else it is none here
            said = [one.mixture for one in all_mistakes if found.message.endswith(f". {one.advice}")]
            assert any(same(mixture, mistake.mixture) for mixture in said)


def test_each_mistake_with_momentum_is_told():
    w, v, g = torch.tensor([1.0]), torch.tensor([0.7]), torch.tensor([2.3])
    new = 0.8 * 2 * v + 0.2 * g
    for right, all_mistakes in (
        (new, asked.velocity_mistakes(v, g, rate=0.2, rho=2.0, m=0.8)),
        (w - new, asked.weight_mistakes(w, v, new, g, rate=0.2)),
    ):
        for words, mistake in all_mistakes.items():
            assert asked.other_than(mistake, right, all_mistakes) == words
        assert asked.other_than(right, right, all_mistakes) is None


def test_bytes_that_grow():
    assert list(asked.travels_once([1000, 1000], [1016, 1016])) == []
    assert [finding.rank for finding in asked.travels_once([1000, 1000], [1016, 3000])] == [1]
