"""The data sets of the lessons, small enough for seconds of training and made without a network.

digits()    handwritten digits: easy, real, at home in scikit-learn
spirals()   interleaved noisy spirals in 32 dimensions: made here, and hard enough that staleness shows
text()      the Python language reference as characters: at home in every Python
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch


class Data(NamedTuple):
    """Training and test samples: `x` float32 of shape (samples, features), `y` int64 of shape (samples,)."""

    x: torch.Tensor
    y: torch.Tensor
    test_x: torch.Tensor
    test_y: torch.Tensor


class Text(NamedTuple):
    """Characters in the order of the text, as numbers: `train` and `test` int64 of shape (characters,).

    Number i stands for `alphabet[i]`.
    """

    train: torch.Tensor
    test: torch.Tensor
    alphabet: str


def digits(test: float = 0.2, seed: int = 0) -> Data:
    """1,797 handwritten digits of 8 x 8 pixels: 64 features in [0, 1], classes 0 to 9.

    `test` is the part that is held back, and `seed` shuffles before it is.

    Source: Alpaydin and Kaynak, "Optical recognition of handwritten digits", UCI Machine Learning Repository (1998),
    the test set, as scikit-learn ships it. Licence of the data: CC BY 4.0.
    """
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return _split(x / 16, y, test, seed)


def spirals(
    samples: int = 6000, classes: int = 5, turns: float = 1.5, noise: float = 0.02, test: float = 0.2, seed: int = 0
) -> Data:
    """`classes` interleaved spiral arms in the plane, lifted to 32 features.

    The recipe: a sample of class c at radius r, uniform in [0.1, 1], has the angle 2 pi (turns r + c / classes);
    normal noise of standard deviation `noise` is added to both coordinates. The 32 features are sin(a . (x1, x2) + b)
    with a normal of standard deviation 2 and b uniform in [0, 2 pi], drawn once: the same for every `seed`.
    No linear model separates the arms; a small MLP does, and it takes its time.
    """
    generator = np.random.default_rng(seed)
    y = generator.integers(0, classes, samples)
    radius = generator.uniform(0.1, 1, samples)
    angle = 2 * math.pi * (turns * radius + y / classes)
    plane = radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1)  # (samples, 2)
    plane += generator.normal(0, noise, plane.shape)
    lift = np.random.default_rng(32)
    features = np.sin(plane @ lift.normal(0, 2, (2, 32)) + lift.uniform(0, 2 * math.pi, 32))  # (samples, 32)
    return _split(features, y, test, seed)


def text(characters: int = 400_000, test: float = 0.1) -> Text:
    """The first `characters` of the Python language reference: a text on which a small language model learns a lot.

    The alphabet is a new line and the 95 printable ASCII characters; any other becomes "?". The last part `test` is
    held back. Raises ValueError if there are not that many characters.

    Source: the help pages that come with Python (`pydoc_data.topics`), in the order of their names. The text differs a
    little between versions of Python. Copyright Python Software Foundation, licence: PSF-2.0.
    """
    from pydoc_data.topics import topics

    whole = "\n\n".join(topics[name].strip() for name in sorted(topics))
    if not 1 < characters <= len(whole):
        raise ValueError(f"characters={characters}: the text has {len(whole)}, and it takes two or more")
    _check_part(test)
    alphabet = "\n" + "".join(map(chr, range(32, 127)))
    number = {character: i for i, character in enumerate(alphabet)}
    numbers = torch.tensor([number.get(character, number["?"]) for character in whole[:characters]])
    cut = characters - round(test * characters)
    return Text(numbers[:cut], numbers[cut:], alphabet)


def _check_part(test: float) -> None:
    if not 0 < test < 1:
        raise ValueError(f"test is the part of the samples that is held back, between 0 and 1, not {test!r}")


def _split(x: np.ndarray, y: np.ndarray, test: float, seed: int) -> Data:
    _check_part(test)
    order = np.random.default_rng(seed).permutation(len(x))
    cut = len(x) - round(test * len(x))
    x, y = torch.from_numpy(x[order]).float(), torch.from_numpy(y[order]).long()
    return Data(x[:cut], y[:cut], x[cut:], y[cut:])
