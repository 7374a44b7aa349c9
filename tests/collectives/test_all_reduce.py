"""Ring and root all-reduce: right for any world and size, and exactly as many bytes as the formula says."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from dtcourse import Cluster, RankError, per_rank, provenance
from dtcourse.collectives.ring import ring_all_gather, ring_all_reduce, ring_reduce_scatter
from dtcourse.collectives.root import root_all_reduce

WORLDS = range(1, 7)


@pytest.fixture(scope="module")
def clusters():
    with ExitStack() as stack:
        yield {world: stack.enter_context(Cluster(world)) for world in WORLDS}


def bytes_of_chunks(size, world, bytes_each=8):
    return [len(c) * bytes_each for c in torch.empty(size).tensor_split(world)]


@settings(max_examples=40, deadline=None)
@given(world=st.sampled_from(WORLDS), size=st.integers(0, 40), seed=st.integers(0, 100))
@pytest.mark.parametrize("all_reduce", [ring_all_reduce, root_all_reduce])
def test_the_sum_and_the_bytes(clusters, all_reduce, world, size, seed):
    generator = torch.Generator().manual_seed(seed)
    tensors = [torch.randint(-9, 9, (size,), generator=generator) for _ in range(world)]
    run = clusters[world].run(lambda x: (all_reduce(x), x)[1], per_rank(tensors))
    assert all(torch.equal(x, sum(tensors)) for x in run.results)
    c, total = bytes_of_chunks(size, world), 8 * size
    if all_reduce is root_all_reduce:
        expected = [total * (world - 1) if rank == 0 else total for rank in range(world)]
    else:
        expected = [2 * total - c[(j + 1) % world] - c[(j + 2) % world] for j in range(world)]
    assert [run.bytes_sent(rank) for rank in range(world)] == (expected if world > 1 else [0])


@pytest.mark.parametrize("world", WORLDS)
def test_after_reduce_scatter_rank_j_owns_chunk_j_plus_1(clusters, world):
    tensors = [provenance(world, rank, 11) for rank in range(world)]
    run = clusters[world].run(lambda x: (ring_reduce_scatter(x), x)[1], per_rank(tensors))
    for rank, x in enumerate(run.results):
        own = (rank + 1) % world
        assert torch.equal(x.tensor_split(world)[own], sum(tensors).tensor_split(world)[own])


def test_the_table_at_the_top_of_the_file(clusters):
    """The chunk that each rank sends in each step, as the file draws it."""
    table = [[0, 3, 2, 1, 0, 3], [1, 0, 3, 2, 1, 0], [2, 1, 0, 3, 2, 1], [3, 2, 1, 0, 3, 2]]
    drawn = [line.split("sends")[1].replace("|", "").split() for line in ring_file().splitlines() if " sends  " in line]
    assert [[int(n) for n in row] for row in drawn] == table
    run = clusters[4].run(ring_all_reduce, per_rank([provenance(4, rank, 4) for rank in range(4)]), watch=True)
    for rank in range(4):
        positions = [int(e.payload[0]) // 16**4 // sum_of_digits(int(e.payload[0])) for e in run.messages(rank)]
        assert positions == table[rank]
        assert [e.step for e in run.messages(rank)] == [1, 2, 3, 4, 5, 6]
        assert {e.peer for e in run.messages(rank)} == {(rank + 1) % 4}


def ring_file():
    import dtcourse.collectives.ring as module

    return module.__doc__


def sum_of_digits(value):
    return sum(value // 16**r % 16 for r in range(4))


def test_in_a_subgroup_and_with_shapes_kept(clusters):
    def function():
        group = dist.new_group([1, 2, 4])
        x = torch.full((2, 5), float(dist.get_rank()))
        if dist.get_rank() in (1, 2, 4):
            ring_all_reduce(x, group)
            root_all_reduce(x, group)
        return x

    results = clusters[5].run(function).results
    assert torch.equal(results[2], torch.full((2, 5), 21.0)) and torch.equal(results[0], torch.zeros(2, 5))


@pytest.mark.parametrize("function", [ring_reduce_scatter, ring_all_gather, root_all_reduce])
def test_a_strided_tensor_is_refused(clusters, function):
    with pytest.raises(RankError, match=r"pass tensor\.contiguous\(\)"):
        clusters[2].run(lambda: function(torch.ones(4, 4).t()))
