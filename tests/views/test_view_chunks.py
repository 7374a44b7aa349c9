"""Whether a chunk's history is read from its values as it really was: against the scalar functions, for any mixture."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dtcourse.origins import contributions, position, provenance
from dtcourse.views.chunks import Piece, are_sums_in_place, cuts, is_provenance, pieces, row, which

worlds = st.integers(1, 8)


@settings(deadline=None)
@given(st.integers(0, 100), worlds)
def test_cuts_as_tensor_split_cuts(length: int, world: int) -> None:
    expected = [(int(c[0]), int(c[-1]) + 1) if len(c) else None for c in torch.arange(length).tensor_split(world)]
    found = [(a, b) if b > a else None for a, b in cuts(length, world)]
    assert found == expected


@st.composite
def mixtures(draw: st.DrawFn) -> tuple[int, int, torch.Tensor]:
    """A world, an offset, and values that are sums of any ranks' elements from any positions."""
    world, length = draw(worlds), draw(st.integers(1, 7))
    ranks = [provenance(world, rank, 16) for rank in range(world)]
    terms = st.lists(st.tuples(st.integers(0, world - 1), st.integers(0, 15)), max_size=5)
    values = [sum(int(ranks[rank][at]) for rank, at in draw(terms)) for _ in range(length)]
    return world, draw(st.integers(0, 9)), torch.tensor(values)


@settings(deadline=None)
@given(mixtures())
def test_pieces_say_what_the_scalar_functions_say(mixture: tuple[int, int, torch.Tensor]) -> None:
    world, offset, values = mixture
    found = pieces(values, world, offset)
    covered = []
    for piece in found:
        for at in range(piece.start, piece.stop):
            value = int(values[at - offset])
            summed = position(value, world)
            assert piece.counts == contributions(value, world)
            assert piece.moved == (None if summed is None else summed - at)
            covered.append(at)
    assert covered == list(range(offset, offset + len(values)))
    for left, right in pairwise(found):
        assert (left.counts, left.moved) != (right.counts, right.moved), "neighbours of one history are one piece"


@settings(deadline=None)
@given(worlds, st.integers(1, 40))
def test_own_tensor_and_whole_sum(world: int, length: int) -> None:
    tensors = [provenance(world, rank, length) for rank in range(world)]
    for rank, tensor in enumerate(tensors):
        assert is_provenance(tensor, world, rank)
        alone = tuple(int(r == rank) for r in range(world))
        for chunk in row(tensor, world, True):
            assert all(piece == Piece(chunk.start, chunk.stop, alone, 0) for piece in chunk.pieces)
            assert chunk.complete == (world == 1 and chunk.stop > chunk.start)
    for chunk in row(sum(tensors), world, True):
        assert chunk.complete == (chunk.stop > chunk.start)


@settings(deadline=None)
@given(worlds, st.integers(1, 40), st.data())
def test_a_payload_is_named_by_its_positions(world: int, length: int, data: st.DataObject) -> None:
    tensor = provenance(world, data.draw(st.integers(0, world - 1)), length)
    start = data.draw(st.integers(0, length - 1))
    stop = data.draw(st.integers(start + 1, length))
    chunk, what = which(tensor[start:stop], tensor, world, True)
    spans = cuts(length, world)
    if (start, stop) in spans:
        assert (chunk, what) == (spans.index((start, stop)), f"chunk {spans.index((start, stop))}")
    else:
        assert chunk is None
        assert str(start) in what or (start, stop) == (0, length)


def test_a_rank_counted_twice_is_seen_and_is_not_complete() -> None:
    tensor = provenance(4, 0, 8) * 3 + provenance(4, 3, 8)  # with digits 2**rank this would look like something else
    chunk = row(tensor, 4, True)[0]
    assert chunk.pieces == (Piece(0, 2, (3, 0, 0, 1), 0),)
    assert not chunk.complete


def test_a_chunk_in_the_wrong_place_tells_where_it_belongs() -> None:
    tensor = provenance(2, 0, 6)
    tensor[:3] = tensor[3:].clone()
    assert row(tensor, 2, True)[0].pieces == (Piece(0, 3, (1, 0), 3),)


@pytest.mark.parametrize("value", [-1, -(16**5)])
def test_negative_values_have_no_history(value: int) -> None:
    assert pieces(torch.tensor([value]), 4) == (Piece(0, 1, None, None),)


def test_zeros_are_nobodys() -> None:
    assert pieces(torch.zeros(3, dtype=torch.int64), 4) == (Piece(0, 3, (0, 0, 0, 0), None),)


def test_floats_have_numbers_and_no_pieces() -> None:
    tensor = torch.tensor([0.5, 1.25, 3.0])
    chunks = row(tensor, 2, False)
    assert [chunk.pieces for chunk in chunks] == [(), ()]
    assert [chunk.numbers for chunk in chunks] == [("0.5", "1.25"), ("3",)]
    assert which(tensor[2:], tensor, 2, False) == (1, "chunk 1")
    assert which(torch.tensor([7.0]), tensor, 2, False) == (None, "1 element")


@settings(deadline=None)
@given(worlds, st.integers(2, 40), st.data())
def test_sums_that_lie_in_their_places_are_known(world: int, length: int, data: st.DataObject) -> None:
    """Each element is the sum of any ranks' numbers, each rank up to 15 times, as a half-way state may be."""
    own = torch.stack([provenance(world, rank, length) for rank in range(world)])
    times = st.lists(st.integers(0, 15), min_size=world, max_size=world).filter(any)
    tensors = [sum(n * own[r] for r, n in enumerate(data.draw(times))) for _ in range(world)]
    assert are_sums_in_place(tensors, world)
    strange = tensors[-1].roll(1)
    assert not are_sums_in_place([*tensors[:-1], strange], world)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(8),
        torch.arange(1, 9),
        torch.zeros(8, dtype=torch.int64),
        torch.ones(8, dtype=torch.int64),
        torch.full((8,), 3),
        torch.arange(8) * 16**4,
        -provenance(4, 0, 8),
        torch.tensor([5]),
        torch.tensor([], dtype=torch.int64),
        torch.ones(8),
    ],
)
def test_ordinary_numbers_are_not_taken_for_sums(tensor: torch.Tensor) -> None:
    assert not are_sums_in_place([tensor] * 4, 4)
