"""The data sets: what the docstrings say of them, nothing lost in the split, and the same again for the same seed."""

import pytest
import torch
from sklearn.linear_model import LogisticRegression

from dtcourse.datasets import digits, spirals, text

both = pytest.mark.parametrize("make", [digits, spirals])
every = pytest.mark.parametrize("make", [digits, spirals, text])


def rows(*tensors):
    return sorted(map(tuple, torch.cat(tensors).tolist()))


def test_digits_are_all_there():
    data = digits()
    assert (data.x.shape, data.test_x.shape) == ((1438, 64), (359, 64))
    assert data.x.dtype == torch.float32 and data.y.dtype == torch.int64
    assert (data.x.min(), data.x.max()) == (0, 1)
    assert sorted(set(data.y.tolist())) == sorted(set(data.test_y.tolist())) == list(range(10))


@both
def test_the_split_loses_nothing_and_the_seed_shuffles(make):
    data, again, other = make(), make(), make(test=0.5)
    assert all(torch.equal(a, b) for a, b in zip(data, again, strict=True))
    assert rows(data.x, data.test_x) == rows(other.x, other.test_x)
    assert len(other.test_x) == round(0.5 * (len(data.x) + len(data.test_x)))
    assert not torch.equal(make(seed=1).x, data.x)


@every
@pytest.mark.parametrize("test", [0, 1, -0.1])
def test_a_part_is_between_0_and_1(make, test):
    with pytest.raises(ValueError, match="between 0 and 1"):
        make(test=test)


def test_spirals_are_lifted_and_no_linear_model_separates_them():
    data = spirals()
    assert data.x.shape == (4800, 32) and data.x.abs().max() <= 1
    assert sorted(set(data.y.tolist())) == list(range(5))
    linear = LogisticRegression(max_iter=500).fit(data.x.numpy(), data.y.numpy())
    assert linear.score(data.test_x.numpy(), data.test_y.numpy()) < 0.6


def test_another_seed_has_other_samples_of_the_same_features():
    one, two = spirals(noise=0, seed=0), spirals(noise=0, seed=1)
    # of the same lift: the nearest sample of one set has the class of the other's
    nearest = torch.cdist(two.test_x, one.x).argmin(1)
    assert (one.y[nearest] == two.test_y).float().mean() > 0.95


def test_text_is_the_language_reference_in_order():
    data = text()
    whole = torch.cat([data.train, data.test])
    assert whole.shape == (400_000,) and whole.dtype == torch.int64 and len(data.test) == 40_000
    assert len(data.alphabet) == len(set(data.alphabet)) == 96
    read = "".join(data.alphabet[i] for i in whole.tolist())
    assert read.startswith('The "assert" statement\n') and "Assignment is defined recursively" in read
    assert read.count("?") / len(read) < 0.01


@pytest.mark.parametrize("characters", [0, 1, 10**9])
def test_text_has_an_end(characters):
    with pytest.raises(ValueError, match="the text has"):
        text(characters)
