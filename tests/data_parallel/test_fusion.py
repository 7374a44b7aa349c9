"""Tensor fusion: what goes together."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

import dtcourse.data_parallel.fusion as fusion
from dtcourse.data_parallel.fusion import alike, bytes_of, fused

DTYPES = [torch.float32, torch.float64, torch.bfloat16]


@given(st.lists(st.tuples(st.integers(0, 30), st.sampled_from(DTYPES))), st.integers(1, 100))
def test_each_once_alike_and_within_the_limit(tensors, limit):
    tensors = [torch.empty(n, dtype=dtype) for n, dtype in tensors]
    buffers = fused(tensors, limit)
    assert sorted(id(t) for buffer in buffers for t in buffer) == sorted(map(id, tensors))
    for buffer in buffers:
        assert all(alike(buffer[0], tensor) for tensor in buffer)
        assert bytes_of(*buffer) <= limit or len(buffer) == 1
    for first, second in ((a, b) for j, b in enumerate(buffers) for a in buffers[:j] if alike(a[0], b[0])):
        assert bytes_of(*first, second[0]) > limit  # it would have had room there


def test_the_table_at_the_top_of_the_file():
    sizes, letters = (
        line.split() for line in fusion.__doc__.splitlines() if line.startswith(("    sizes", "    fused"))
    )
    tensors = [torch.empty(int(size) << 20, dtype=torch.uint8) for size in sizes[3:-2]]
    found = fused(tensors, int(sizes[-1]) << 20)
    of = {id(tensor): "abc"[number] for number, buffer in enumerate(found) for tensor in buffer}
    assert [of[id(tensor)] for tensor in tensors] == letters[1:]
