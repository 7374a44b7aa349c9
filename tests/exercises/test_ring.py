"""The tests of the exercise `ring`: who sends which chunk to whom in which step, what is there in the end, the bytes.

Each test goes from few ranks to many, and from even sizes to uneven ones, and stops at the first thing that is wrong.
The tensors are provenance tensors: their values tell which rank and which position they come from.
"""

import random

import pytest
import torch

from dtcourse import per_rank, provenance
from dtcourse.grading.findings import fail_on
from dtcourse.grading.messages import Parcel, messages, nothing_hidden, own_messages, partners, sent_bytes
from dtcourse.grading.values import Holding, holdings, numbers, tensors

WORLDS = (2, 3, 4, 5)


# -- what the ring does ------------------------------------------------------------------------------------------------


def reduce_scatter(world):
    """For each rank, what it sends in each step: chunk j-i, in which the numbers of i+1 ranks are added up by then."""
    return [
        [
            Parcel(to=(j + 1) % world, chunk=(j - i) % world, of=tuple((j - k) % world for k in range(i + 1)))
            for i in range(world - 1)
        ]
        for j in range(world)
    ]


def all_gather(world):
    """For each rank, what it sends in each step: chunk j-i+1, complete."""
    everybody = tuple(range(world))
    return [
        [Parcel(to=(j + 1) % world, chunk=(j - i + 1) % world, of=everybody) for i in range(world - 1)]
        for j in range(world)
    ]


def all_reduce(world):
    return [first + second for first, second in zip(reduce_scatter(world), all_gather(world), strict=True)]


def one_chunk(world):
    """What each rank holds between the two halves: the sum of chunk j+1."""
    return [[Holding(chunk=(j + 1) % world, of=tuple(range(world)))] for j in range(world)]


def all_chunks(world):
    return [[Holding(chunk, of=tuple(range(world))) for chunk in range(world)] for _ in range(world)]


# -- what the ranks begin with -----------------------------------------------------------------------------------------


def own_numbers(world, length):
    return [provenance(world, rank, length) for rank in range(world)]


def one_sum_each(world, length):
    """What a reduce-scatter may leave: the sum in chunk j+1, and its own numbers in the other chunks."""
    given = own_numbers(world, length)
    total = sum(given).tensor_split(world)
    for rank, tensor in enumerate(given):
        chunk = (rank + 1) % world
        tensor.tensor_split(world)[chunk].copy_(total[chunk])
    return given


def drawn(submission):
    """Numbers that no rank can know of another, for five ranks, and their sum."""
    world, draw = max(WORLDS), torch.Generator().manual_seed(submission.seed)
    given = [torch.randint(-1000, 1000, (2 * world,), generator=draw) for _ in range(world)]
    return given, sum(given)


def uneven(world):
    """Sizes that the number of ranks does not divide, fewer elements than ranks, none."""
    return (2 * world + 1, world - 1, 0)


# -- the tests ---------------------------------------------------------------------------------------------------------


@pytest.mark.points(3)
def test_reduce_scatter_messages(submission):
    """reduce-scatter: the right chunk goes to the right neighbour in every step"""
    for world in WORLDS:
        run = submission.run("ring_reduce_scatter", per_rank(own_numbers(world, 2 * world)), world=world)
        fail_on(run, messages(run, reduce_scatter(world), "the ring"))


@pytest.mark.points(2)
def test_reduce_scatter_sums(submission):
    """reduce-scatter: rank j ends with the sum of chunk j+1"""
    for world in WORLDS:
        run = submission.run("ring_reduce_scatter", per_rank(own_numbers(world, 2 * world)), world=world)
        fail_on(run, holdings(run, one_chunk(world)))
    given, total = drawn(submission)
    run = submission.run("ring_reduce_scatter", per_rank(given), world=len(given))
    fail_on(run, own_messages(run))
    fail_on(run, numbers(run, total, [[(j + 1) % len(given)] for j in range(len(given))]))


@pytest.mark.points(3)
def test_all_gather_messages(submission):
    """all-gather: the right chunk goes to the right neighbour in every step"""
    for world in WORLDS:
        run = submission.run("ring_all_gather", per_rank(one_sum_each(world, 2 * world)), world=world)
        fail_on(run, messages(run, all_gather(world), "the ring"))


@pytest.mark.points(2)
def test_all_gather_completes(submission):
    """all-gather: every rank ends with all chunks"""
    for world in WORLDS:
        run = submission.run("ring_all_gather", per_rank(one_sum_each(world, 2 * world)), world=world)
        fail_on(run, holdings(run, all_chunks(world)))
    given, total = drawn(submission)
    for rank, tensor in enumerate(given):
        chunk = (rank + 1) % len(given)
        tensor.tensor_split(len(given))[chunk].copy_(total.tensor_split(len(given))[chunk])
    run = submission.run("ring_all_gather", per_rank(given), world=len(given))
    fail_on(run, own_messages(run))
    fail_on(run, numbers(run, total, [range(len(given))] * len(given)))


@pytest.mark.points(2)
def test_all_reduce_messages(submission):
    """all-reduce: first the one half, then the other, and nothing else"""
    for world in WORLDS:
        run = submission.run("ring_all_reduce", per_rank(own_numbers(world, 2 * world)), world=world)
        fail_on(run, messages(run, all_reduce(world), "the ring"))


@pytest.mark.points(2)
def test_all_reduce_sums(submission):
    """all-reduce: every rank ends with the sum, in place"""
    for world in WORLDS:
        run = submission.run("ring_all_reduce", per_rank(own_numbers(world, 2 * world)), world=world)
        fail_on(run, holdings(run, all_chunks(world)))
    given, total = drawn(submission)
    run = submission.run("ring_all_reduce", per_rank(given), world=len(given))
    fail_on(run, own_messages(run))
    fail_on(run, numbers(run, total, [range(len(given))] * len(given)))


@pytest.mark.points(3)
def test_uneven_sizes(submission):
    """sizes that the ranks do not divide, fewer elements than ranks, no elements"""
    for world in WORLDS:
        for size in uneven(world):
            run = submission.run("ring_reduce_scatter", per_rank(own_numbers(world, size)), world=world)
            fail_on(run, messages(run, reduce_scatter(world), "the ring"))
            fail_on(run, holdings(run, one_chunk(world)))
            run = submission.run("ring_all_gather", per_rank(one_sum_each(world, size)), world=world)
            fail_on(run, messages(run, all_gather(world), "the ring"))
            fail_on(run, holdings(run, all_chunks(world)))
            run = submission.run("ring_all_reduce", per_rank(own_numbers(world, size)), world=world)
            fail_on(run, messages(run, all_reduce(world), "the ring"))
            fail_on(run, holdings(run, all_chunks(world)))


@pytest.mark.points(2)
def test_floats_of_any_shape(submission):
    """float32 of shape (5, 3, 7): the sum, and no more bytes than the ring needs"""
    for world in WORLDS:
        draw = torch.Generator().manual_seed(submission.seed)
        given = [torch.randn(5, 3, 7, generator=draw) for _ in range(world)]
        run = submission.run("ring_all_reduce", per_rank(given), world=world)
        c = [chunk.nbytes for chunk in given[0].view(-1).tensor_split(world)]
        counts = [2 * given[0].nbytes - c[(j + 1) % world] - c[(j + 2) % world] for j in range(world)]
        formulas = [f"2S - c[{(j + 1) % world}] - c[{(j + 2) % world}]" for j in range(world)]
        fail_on(run, nothing_hidden(run))
        fail_on(run, partners(run, [(j + 1) % world for j in range(world)], "the ring"))
        fail_on(run, sent_bytes(run, counts, formulas, "the ring"))
        fail_on(run, tensors(run, [sum(given)] * world, tolerance=1e-5))


@pytest.mark.hidden
@pytest.mark.points(2)
def test_drawn_sizes(submission):
    """sizes that are drawn"""
    draw = random.Random(submission.seed)
    for world in WORLDS:
        run = submission.run("ring_all_reduce", per_rank(own_numbers(world, draw.randrange(1, 50))), world=world)
        fail_on(run, messages(run, all_reduce(world), "the ring"))
        fail_on(run, holdings(run, all_chunks(world)))


@pytest.mark.points(1)
def test_group(submission):
    """a ring of ranks 1, 2 and 4 among five, given as `group`"""
    members = (1, 2, 4)
    given = own_numbers(len(members), 7)
    everybody = [given[members.index(rank)] if rank in members else given[0] for rank in range(5)]
    run = submission.run("ring_all_reduce", per_rank(everybody), world=5, group=members)
    fail_on(run, messages(run, all_reduce(len(members)), "the ring", members))
    fail_on(run, holdings(run, all_chunks(len(members)), members))


@pytest.mark.points(1)
def test_one_rank(submission):
    """one rank alone: nothing to send, nothing to change"""
    given = provenance(1, 0, 3)
    for name in ("ring_reduce_scatter", "ring_all_gather", "ring_all_reduce"):
        run = submission.run(name, given, world=1)
        fail_on(run, messages(run, [[]], "the ring"))
        fail_on(run, holdings(run, all_chunks(1)))
