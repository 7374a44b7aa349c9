"""The tests of the exercise `collectives`: who sends what to whom in trees and halving-doubling, and what that costs.

Each test goes from few ranks to many, and stops at the first thing that is wrong. The tensors are provenance tensors:
their values tell which rank and which position they come from.
"""

import random
from typing import NamedTuple

import pytest
import torch

from dtcourse import per_rank, provenance
from dtcourse.grading.costs import Cost, answers, not_the_fastest, questions, wrong_seconds
from dtcourse.grading.findings import Finding, explained_by, fail_on
from dtcourse.grading.messages import messages, nothing_hidden, own_messages, sent_bytes
from dtcourse.grading.rounds import Sending, Turns, in_turn, wrong_receives
from dtcourse.grading.values import Holding, holdings, numbers, tensors

WORLDS = (2, 3, 4, 5, 8)
POWERS = (2, 4, 8)
OTHERS = (3, 5, 7)
DIRECTLY = "asked directly"

# -- trees -------------------------------------------------------------------------------------------------------------


def distances(world):
    return [2**i for i in range((world - 1).bit_length())]


def up(world, root):
    """The rounds of a reduce: at distance d the places that are odd multiples of it send what they have added up."""
    at = lambda place: (root + place) % world  # noqa: E731
    for d in distances(world):
        sent = {place: tuple(map(at, range(place, min(place + d, world)))) for place in range(d, world, 2 * d)}
        yield f"distance {d}", [Sending(at(place), at(place - d), None, of) for place, of in sent.items()]


def down(world, root):
    """The rounds of a broadcast: the same backwards, with the root's numbers."""
    for why, sendings in reversed(list(up(world, root))):
        yield why, [Sending(s.to, s.rank, None, (root,)) for s in sendings]


# -- halving and doubling ----------------------------------------------------------------------------------------------


def block(chunk, d):
    first = chunk - chunk % d
    return range(first, first + d) if d > 1 else first


def halving(ranks, of):
    """The rounds. `of`: for each number the ranks whose tensors it has begun with."""
    for d in reversed(distances(len(ranks))):
        added = [tuple(r for m in range(j % (2 * d), len(ranks), 2 * d) for r in of[m]) for j in range(len(ranks))]
        yield f"halving, d = {d}", [Sending(r, ranks[j ^ d], block(j ^ d, d), added[j]) for j, r in enumerate(ranks)]


def doubling(ranks, everybody):
    for d in distances(len(ranks)):
        yield f"doubling, d = {d}", [Sending(r, ranks[j ^ d], block(j, d), everybody) for j, r in enumerate(ranks)]


def greatest_power(world):
    return 2 ** (world.bit_length() - 1)


def all_reduce(world):
    """The rounds of a halving-doubling all-reduce, among any number of ranks."""
    power, everybody = greatest_power(world), tuple(range(world))
    even = range(0, 2 * (world - power), 2)
    if even:
        yield "the even rank of a pair, first", [Sending(r, r + 1, None, (r,)) for r in even]
    ranks = [r for r in everybody if r not in even]
    yield from halving(ranks, [(r - 1, r) if r - 1 in even else (r,) for r in ranks])
    yield from doubling(ranks, everybody)
    if even:
        yield "the odd rank of a pair, last", [Sending(r + 1, r, None, everybody) for r in even]


def bytes_of(world, tensor):
    """What each rank sends in a halving-doubling all-reduce, in bytes, and how that comes about."""
    power, pairs = greatest_power(world), world - greatest_power(world)
    c = [chunk.nbytes for chunk in tensor.view(-1).tensor_split(power)]
    for rank in range(world):
        if rank < 2 * pairs and rank % 2 == 0:
            yield tensor.nbytes, "S"
            continue
        number, last = (rank // 2, True) if rank < 2 * pairs else (rank - pairs, False)
        blocks = [block(number, d) for d in distances(power)]
        back = sum(sum(c[b[0] : b[-1] + 1]) if isinstance(b, range) else c[b] for b in blocks)
        formula = f"2 * {power - 1}/{power} S{' + S' if last else ''}, with chunks as long as they are"
        yield sum(c) - c[number] + back + last * sum(c), formula


# -- what the ranks begin with, and have to hold in the end ------------------------------------------------------------


def own_numbers(world, length):
    return [provenance(world, rank, length) for rank in range(world)]


def one_sum_each(ranks, length):
    """What the halving may leave: the sum in the chunk with the rank's number, and its own numbers in the others."""
    world = len(ranks)
    given, total = own_numbers(world, length), sum(own_numbers(world, length)).tensor_split(world)
    for number, rank in enumerate(ranks):
        given[rank].tensor_split(world)[number].copy_(total[number])
    return given


def of_members(members, world):
    """For each of `world` ranks its tensor: of the members of a group, the numbers of their places in it."""
    given = own_numbers(len(members), 13)
    return [given[members.index(rank)] if rank in members else given[0] for rank in range(world)]


def all_chunks(world):
    """Every rank holds the sum of all, told chunk by chunk."""
    return [[Holding(chunk, tuple(range(world))) for chunk in range(world)] for _ in range(world)]


def drawn(submission, world):
    """Numbers that no rank can know of another."""
    draw = torch.Generator().manual_seed(submission.seed)
    return [torch.randint(-1000, 1000, (2 * world + 1,), generator=draw) for _ in range(world)]


# -- what they cost ----------------------------------------------------------------------------------------------------


def costs(world):
    """Algorithm and world -> its cost."""
    power, steps = greatest_power(world), len(distances(world))
    halves = len(distances(power))
    extra = world != power
    paired = f", and 2 more for the pairs: p = {power}" if extra else ""
    shares = " + ".join(f"{d}/{power}" for d in reversed(distances(power))) or "0"
    return {
        ("ring", world): Cost(
            2 * (world - 1), 2 * (world - 1) / world, f"2 * {world - 1}, with 1/{world} of the tensor in each"
        ),
        ("tree", world): Cost(2 * steps, 2 * steps, f"{steps} up and {steps} down, with the whole tensor in each"),
        ("halving_doubling", world): Cost(
            2 * halves + 2 * extra,
            2 * (power - 1) / power + 2 * extra,
            f"{halves} halving and {halves} doubling, with {shares} of the tensor each way{paired}",
        ),
    }


# -- the tests ---------------------------------------------------------------------------------------------------------


class Expected(NamedTuple):
    """What each rank has to send, and what it has to hold in the end."""

    name: str
    turns: Turns
    ends: list
    members: tuple | None = None  # the global ranks of the group, if not all

    def sent(self, run):
        return messages(run, self.turns.parcels, self.name, self.members)

    def explains(self):
        """A deadlock is told by the message that went wrong before it, or by the rank that receives otherwise."""
        return explained_by(self.stuck)

    def stuck(self, run):
        found = [finding for finding in self.sent(run) if finding.line]
        return found or wrong_receives(run, self.turns, self.name, self.members)

    def judge(self, run):
        __tracebackhide__ = True
        fail_on(run, self.sent(run))
        fail_on(run, holdings(run, self.ends, self.members))


def broadcast(world, root, members=None):
    ends = [[Holding(None, (root,))]] * world
    return Expected("the tree", in_turn(down(world, root), world), ends, members)


def reduce(world, root, members=None):
    ends = [[Holding(None, tuple(range(world)))] if rank == root else [] for rank in range(world)]
    return Expected("the tree", in_turn(up(world, root), world), ends, members)


def halves(ranks):
    """Rank ranks[j] has number j."""
    world = len(ranks)
    ends = [[Holding(ranks.index(rank), tuple(range(world)))] for rank in range(world)]
    return Expected("halving-doubling", in_turn(halving(ranks, [(r,) for r in ranks]), world), ends)


def doubles(ranks):
    world = len(ranks)
    return Expected("halving-doubling", in_turn(doubling(ranks, tuple(range(world))), world), all_chunks(world))


def both(world, members=None):
    power, ends = greatest_power(world), [[Holding(None, tuple(range(world)))]] * world
    ends = all_chunks(world) if world == power else ends
    return Expected("halving-doubling", in_turn(all_reduce(world), world, power), ends, members)


@pytest.mark.points(3)
def test_broadcast(submission):
    """tree_broadcast: from rank 0, to the farthest first"""
    for world in WORLDS:
        expected, given = broadcast(world, 0), own_numbers(world, 2 * world)
        with expected.explains():
            run = submission.run("tree_broadcast", per_rank(given), 0, world=world)
        expected.judge(run)


@pytest.mark.points(1)
def test_broadcast_from_any_root(submission):
    """tree_broadcast: from any rank"""
    for world in WORLDS:
        expected, given = broadcast(world, world - 1), own_numbers(world, 3)
        with expected.explains():
            run = submission.run("tree_broadcast", per_rank(given), world - 1, world=world)
        expected.judge(run)


@pytest.mark.points(3)
def test_reduce(submission):
    """tree_reduce: to rank 0, from the nearest first, each with all that it has added up"""
    for world in WORLDS:
        expected, given = reduce(world, 0), own_numbers(world, 2 * world)
        with expected.explains():
            run = submission.run("tree_reduce", per_rank(given), 0, world=world)
        expected.judge(run)


@pytest.mark.points(1)
def test_reduce_to_any_root(submission):
    """tree_reduce: to any rank"""
    for world in WORLDS:
        expected, given = reduce(world, world - 1), own_numbers(world, 3)
        with expected.explains():
            run = submission.run("tree_reduce", per_rank(given), world - 1, world=world)
        expected.judge(run)


@pytest.mark.points(3)
def test_halving(submission):
    """halving: the right block goes to the right partner at every distance, and rank j ends with chunk j"""
    for world in POWERS:
        ranks = list(range(world))
        expected, given = halves(ranks), own_numbers(world, 2 * world)
        with expected.explains():
            run = submission.run("halving", per_rank(given), ranks, world=world)
        expected.judge(run)


@pytest.mark.points(3)
def test_doubling(submission):
    """doubling: the blocks double, and everybody ends with all chunks"""
    for world in POWERS:
        ranks = list(range(world))
        expected, given = doubles(ranks), one_sum_each(ranks, 2 * world)
        with expected.explains():
            run = submission.run("doubling", per_rank(given), ranks, world=world)
        expected.judge(run)


@pytest.mark.points(1)
def test_numbers_that_are_not_ranks(submission):
    """halving, doubling: rank ranks[j] has number j, and that need not be rank j"""
    ranks = [2, 0, 3, 1]
    with halves(ranks).explains():
        run = submission.run("halving", per_rank(own_numbers(4, 8)), ranks, world=4)
    halves(ranks).judge(run)
    with doubles(ranks).explains():
        run = submission.run("doubling", per_rank(one_sum_each(ranks, 8)), ranks, world=4)
    doubles(ranks).judge(run)


@pytest.mark.points(2)
def test_uneven_sizes(submission):
    """halving, doubling: sizes that the ranks do not divide, fewer elements than ranks, no elements"""
    for world in POWERS:
        ranks = list(range(world))
        for length in (2 * world + world // 2, world - 1, 0):
            with halves(ranks).explains():
                run = submission.run("halving", per_rank(own_numbers(world, length)), ranks, world=world)
            halves(ranks).judge(run)
            with doubles(ranks).explains():
                run = submission.run("doubling", per_rank(one_sum_each(ranks, length)), ranks, world=world)
            doubles(ranks).judge(run)


@pytest.mark.points(2)
def test_all_reduce_of_powers(submission):
    """halving_doubling_all_reduce: 2, 4 and 8 ranks"""
    for world in POWERS:
        with both(world).explains():
            run = submission.run(
                "halving_doubling_all_reduce", per_rank(own_numbers(world, 2 * world + 1)), world=world
            )
        both(world).judge(run)


@pytest.mark.points(4)
def test_all_reduce_of_others(submission):
    """halving_doubling_all_reduce: 3, 5 and 7 ranks, of which pairs go together first"""
    for world in OTHERS:
        for length in (8, 13):
            with both(world).explains():
                run = submission.run("halving_doubling_all_reduce", per_rank(own_numbers(world, length)), world=world)
            both(world).judge(run)


@pytest.mark.points(2)
def test_floats_of_any_shape(submission):
    """float32 of shape (5, 3, 7): the sum, and no more bytes than halving-doubling needs"""
    for world in (2, 3, 4, 5):
        draw = torch.Generator().manual_seed(submission.seed)
        given = [torch.randn(5, 3, 7, generator=draw) for _ in range(world)]
        run = submission.run("halving_doubling_all_reduce", per_rank(given), world=world)
        counts, formulas = zip(*bytes_of(world, given[0]), strict=True)
        fail_on(run, nothing_hidden(run))
        fail_on(run, sent_bytes(run, counts, formulas, "halving-doubling"))
        fail_on(run, tensors(run, [sum(given)] * world, tolerance=1e-5))
        run = submission.run("tree_broadcast", per_rank(given), 1, world=world)
        fail_on(run, nothing_hidden(run))
        fail_on(run, tensors(run, [given[1]] * world, tolerance=0))


@pytest.mark.points(2)
def test_drawn_numbers(submission):
    """numbers that are drawn: no rank can know those of another"""
    for world in (2, 4, 5):
        given, root = drawn(submission, world), world - 1
        everywhere, at_the_root = [range(world)] * world, [range(world * (rank == root)) for rank in range(world)]
        run = submission.run("tree_broadcast", per_rank(given), root, world=world)
        fail_on(run, own_messages(run))
        fail_on(run, numbers(run, given[root], everywhere))
        run = submission.run("tree_reduce", per_rank(given), root, world=world)
        fail_on(run, own_messages(run))
        fail_on(run, numbers(run, sum(given), at_the_root))
        run = submission.run("halving_doubling_all_reduce", per_rank(given), world=world)
        fail_on(run, own_messages(run))
        fail_on(run, numbers(run, sum(given), everywhere))


@pytest.mark.hidden
@pytest.mark.points(1)
def test_drawn_sizes(submission):
    """sizes that are drawn"""
    draw = random.Random(submission.seed)
    for world in (4, 5, 7, 8):
        given = own_numbers(world, draw.randrange(1, 50))
        with both(world).explains():
            run = submission.run("halving_doubling_all_reduce", per_rank(given), world=world)
        both(world).judge(run)


@pytest.mark.points(1)
def test_group(submission):
    """among ranks 1, 2 and 4 of five, given as `group`; all-reduce among six of eight"""
    everybody, members = of_members((1, 2, 4), 5), (1, 2, 4)
    with broadcast(3, 2, members).explains():
        run = submission.run("tree_broadcast", per_rank(everybody), 2, world=5, group=members)
    broadcast(3, 2, members).judge(run)
    with reduce(3, 2, members).explains():
        run = submission.run("tree_reduce", per_rank(everybody), 2, world=5, group=members)
    reduce(3, 2, members).judge(run)
    everybody, members = of_members((0, 2, 3, 5, 6, 7), 8), (0, 2, 3, 5, 6, 7)
    with both(6, members).explains():
        run = submission.run("halving_doubling_all_reduce", per_rank(everybody), world=8, group=members)
    both(6, members).judge(run)


@pytest.mark.points(1)
def test_one_rank(submission):
    """one rank alone: nothing to send, nothing to change"""
    given, expected = provenance(1, 0, 3), Expected("one rank", in_turn([], 1), all_chunks(1))
    for tree in ("tree_broadcast", "tree_reduce"):
        expected.judge(submission.run(tree, given, 0, world=1))
    for half in ("halving", "doubling"):
        expected.judge(submission.run(half, given, [0], world=1))
    expected.judge(submission.run("halving_doubling_all_reduce", given, world=1))


def about(worlds):
    """Questions about each algorithm, from few ranks to many, and the right costs."""
    in_turn = [(algorithm, world) for algorithm in ("ring", "tree", "halving_doubling") for world in worlds]
    right = {key: cost for world in worlds for key, cost in costs(world).items()}
    return [question for key in in_turn for question in questions(*key)], right


@pytest.mark.points(2)
def test_seconds_of_powers(submission):
    """seconds: the steps and the bytes of each algorithm, among 2, 4, 8 and 1024 ranks, and of one alone"""
    asked, right = about((2, 4, 8, 1024, 1))
    run = submission.run("seconds", asked, world=1, around=answers, given=DIRECTLY)
    fail_on(run, map(Finding, wrong_seconds(asked, run.results[0], right)), DIRECTLY)


@pytest.mark.points(2)
def test_seconds_of_others(submission):
    """seconds: among 3, 5, 6, 7, 12 and 1000 ranks"""
    asked, right = about((3, 5, 6, 7, 12, 1000))
    run = submission.run("seconds", asked, world=1, around=answers, given=DIRECTLY)
    fail_on(run, map(Finding, wrong_seconds(asked, run.results[0], right)), DIRECTLY)


@pytest.mark.points(1)
def test_fastest(submission):
    """fastest: few bytes and many, few ranks and many, slow links and fast ones"""
    chance, worlds = random.Random(0), (2, 3, 4, 5, 6, 7, 8, 12, 100, 1024)
    asked = [
        (world, 10 ** chance.randint(0, 9), chance.choice((1e-6, 5e-5, 1e-3)), chance.choice((1.25e8, 1e9, 1e11)))
        for world in worlds
        for _ in range(20)
    ]
    right = {key: cost for world in worlds for key, cost in costs(world).items()}
    run = submission.run("fastest", asked, world=1, around=answers, given=DIRECTLY)
    fail_on(run, map(Finding, not_the_fastest(asked, run.results[0], right)), DIRECTLY)
