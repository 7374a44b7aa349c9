"""`strict=True` refuses what NCCL would refuse or hang on, and nothing else."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from dtcourse import Cluster, RankError
from dtcourse.collectives.ring import ring_all_reduce
from dtcourse.collectives.root import root_all_reduce


@pytest.fixture(scope="module")
def strict():
    with Cluster(2, strict=True) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def lenient():
    with Cluster(2) as cluster:
        yield cluster


def from_any():
    x = torch.zeros(1)
    dist.recv(x) if dist.get_rank() else dist.send(x, 1)


def tagged():
    x = torch.zeros(1)
    dist.recv(x, 0, tag=3) if dist.get_rank() else dist.send(x, 1, tag=3)


def both_send_first():
    other, x = 1 - dist.get_rank(), torch.zeros(1)
    works = [dist.isend(x, other), dist.irecv(torch.zeros(1), other)]
    for work in works:
        work.wait()


def both_receive_first():
    other, x = 1 - dist.get_rank(), torch.zeros(1)
    works = [dist.irecv(torch.zeros(1), other), dist.isend(x, other)]
    for work in works:
        work.wait()


def strided():
    x = torch.zeros(3, 2).T
    dist.recv(x, 0) if dist.get_rank() else dist.send(x, 1)


def strided_sum():
    dist.all_reduce(torch.zeros(3, 2).T)


def channels_last():
    x = torch.zeros(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    dist.recv(x, 0) if dist.get_rank() else dist.send(x, 1)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (strided_sum, "contiguous tensors"),
        (strided, "contiguous tensors, and this one, of shape \\(2, 3\\) and strides \\(1, 2\\)"),
        (from_any, "cannot receive from any rank"),
        (tagged, "has no tags"),
        (both_send_first, "both ends send first.*batch_isend_irecv"),
        (both_receive_first, "both ends receive first.*batch_isend_irecv"),
    ],
)
def test_refused(strict, lenient, function, message):
    for _ in range(5):  # whoever comes first
        with pytest.raises(RankError, match=f"raised Refused: .*{message}"):
            strict.run(function)
    lenient.run(function)


def one_after_the_other():
    other, x = 1 - dist.get_rank(), torch.zeros(1)
    if dist.get_rank():
        dist.recv(x, other)
        dist.send(x, other)
    else:
        dist.send(x, other)
        dist.recv(x, other)


@pytest.mark.parametrize(
    "function", [one_after_the_other, channels_last, ring_all_reduce, root_all_reduce, dist.all_reduce]
)
def test_not_refused(strict, function):
    arguments = () if function in (one_after_the_other, channels_last) else (torch.ones(5),)
    for _ in range(5):
        strict.run(function, *arguments)
