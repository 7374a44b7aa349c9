"""The tests of the exercise `data_parallel`: whose samples are whose, what gradients become, what goes through a root.

Each test goes from few ranks to many. Of a gradient that comes out wrong, the message says which mixture of the ranks'
gradients it is; through the root travel provenance tensors, which tell who is in a sum.
"""

import pytest
import torch
from torch import nn

from dtcourse import per_rank, provenance
from dtcourse.grading.findings import Finding, fail_on, number_of
from dtcourse.grading.messages import Parcel, messages, received_bytes, sent_bytes
from dtcourse.grading.mixtures import Difference, Mistake, difference, mean_mistakes
from dtcourse.grading.partition import drawn, not_a_partition, other_than_the_rule
from dtcourse.grading.reading import last_step
from dtcourse.grading.transport import added_on_the_way
from dtcourse.grading.values import Holding, holdings, tensors

WORLDS = (2, 3, 4, 5)


# -- shares ------------------------------------------------------------------------------------------------------------


def shares(run, samples):
    """The findings of a run of share() on all ranks, given a batch of `samples`."""
    taken = []
    for rank, result in enumerate(run.results):
        try:
            if isinstance(result, tuple):  # (start, stop), most likely
                raise TypeError
            taken.append(list(range(samples))[result] if isinstance(result, slice) else [int(s) for s in result])
        except (TypeError, ValueError):
            yield Finding(f"rank {rank} returned {result!r}: return the samples of its share as a slice")
            return
    wrong = [*not_a_partition(taken, samples, "sample"), *other_than_the_rule(taken, samples, "sample")]
    if wrong:
        yield Finding(wrong[0], drawing=drawn(taken, samples))


# -- gradients ---------------------------------------------------------------------------------------------------------


def new_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 6)).double()


SIZE = sum(parameter.nbytes for parameter in new_model().parameters())


def gradients(average_gradients, batch, **group):
    """Each rank does forward and backward on its samples, if it has any, and then calls your average_gradients."""
    model, (x, y) = new_model(), batch
    if len(x):
        nn.functional.mse_loss(model(x), y).backward()
    average_gradients(model, len(x), **group)
    return [parameter.grad for parameter in model.parameters()]


def batches(counts):
    generator = torch.Generator().manual_seed(1)
    return [tuple(torch.randn(n, k, dtype=torch.float64, generator=generator) for k in (8, 6)) for n in counts]


def averaged(run, counts, ranks=None):
    """Each of the ranks, which had `counts` samples, ends with the gradient of all the samples together."""
    ranks = ranks or range(len(counts))
    own = [gradients(lambda model, samples: None, batch) for batch in batches(counts)]
    there = {rank: n for rank, n in zip(ranks, counts, strict=True) if n}
    wanted = {f"g[{rank}]": n / sum(counts) for rank, n in there.items()}
    formula = " + ".join(f"{n}/{sum(counts)} g[{rank}]" for rank, n in there.items())
    for rank in ranks:
        for place, (name, _) in enumerate(new_model().named_parameters()):
            seen = run.results[rank][place]
            parts = {f"g[{r}]": own[ranks.index(r)][place] for r in there}
            found = NO_GRADIENT if seen is None else difference(seen, wanted, parts, mistakes(rank, there, len(ranks)))
            if found:
                said = f"rank {rank} ends with {found.seen} as gradient of {name}; it has to be {formula}"
                said = f"{said}. {found.advice}" if found.advice else said
                yield Finding(said, last_step(run), rank, drawing=found.drawing)
                break


NO_GRADIENT = Difference("None", "Also a rank without samples needs the average: its model makes the same step")


def mistakes(rank, counts, ranks):
    """What likely mistakes leave on a rank. `counts`: rank -> samples, of those that have some."""
    own, n, total = f"g[{rank}]", counts.get(rank, 0), sum(counts.values())
    samples = {f"g[{r}]": n for r, n in counts.items()}
    by_its_own = {name: count / max(n, 1) for name, count in samples.items()}
    by_its_own_times_ranks = {name: amount / ranks for name, amount in by_its_own.items()}
    return [
        Mistake({own: 1}, "That is its own gradient, as it was: change parameter.grad, in place"),
        Mistake({own: n / total}, "That is its own part alone: add up those of all ranks"),
        *mean_mistakes(samples, ranks),
        Mistake(by_its_own, "Divide by the number of samples of all ranks together, not by its own alone"),
        Mistake(by_its_own_times_ranks, "The others do not have as many samples: add up the numbers of all ranks"),
    ]


def given(counts):
    """What the ranks are given, in words."""
    return f"{' + '.join(map(str, counts))} samples"


# -- a root ------------------------------------------------------------------------------------------------------------


def through_root(world, root):
    """For each rank, what it sends: its own tensor to the root, and the root the sum to each of the others."""
    everybody = tuple(range(world))
    others = [rank for rank in everybody if rank != root]
    back = [Parcel(to=rank, chunk=None, of=everybody) for rank in others]
    return [back if rank == root else [Parcel(to=root, chunk=None, of=(rank,))] for rank in everybody]


def the_sum(world):
    return [[Holding(chunk=None, of=tuple(range(world)))] for _ in range(world)]


def own_numbers(world, length):
    return per_rank([provenance(world, rank, length) for rank in range(world)])


# -- the tests ---------------------------------------------------------------------------------------------------------


@pytest.mark.points(1)
def test_even_shares(submission):
    """share: a batch that the ranks divide"""
    for world in (1, *WORLDS):
        for samples in (world, 3 * world):
            batch = number_of(samples, "sample")
            run = submission.run("share", samples, per_rank(range(world)), world, world=world, given=batch)
            fail_on(run, shares(run, samples), batch)


@pytest.mark.points(3)
def test_uneven_shares(submission):
    """share: a batch that they do not divide, fewer samples than ranks, none"""
    for world in WORLDS:
        for samples in (2 * world + 1, 3 * world - 1, world - 1, 1, 0):
            batch = number_of(samples, "sample")
            run = submission.run("share", samples, per_rank(range(world)), world, world=world, given=batch)
            fail_on(run, shares(run, samples), batch)


@pytest.mark.points(2)
def test_equal_shares(submission):
    """average_gradients: every rank has as many samples"""
    for world in (1, *WORLDS):
        counts = [2] * world
        run = submission.run(
            "average_gradients", per_rank(batches(counts)), world=world, around=gradients, given=given(counts)
        )
        fail_on(run, averaged(run, counts), given(counts))


@pytest.mark.points(3)
def test_weights(submission):
    """average_gradients: who has more samples counts for more"""
    for world in WORLDS:
        counts = [3, 1, 2, 6, 4][:world]
        run = submission.run(
            "average_gradients", per_rank(batches(counts)), world=world, around=gradients, given=given(counts)
        )
        fail_on(run, averaged(run, counts), given(counts))


@pytest.mark.points(3)
def test_no_samples(submission):
    """average_gradients: a rank without samples takes part, and gets the average as well"""
    for world in WORLDS:
        for counts in ([3, 0, 1, 2, 4][:world], [0] * (world - 1) + [2]):
            run = submission.run(
                "average_gradients", per_rank(batches(counts)), world=world, around=gradients, given=given(counts)
            )
            fail_on(run, averaged(run, counts), given(counts))


@pytest.mark.points(2)
def test_on_the_way(submission):
    """average_gradients: gradients travel as tensors, and are added up on the way"""
    for world in WORLDS:
        counts = [2] * world
        run = submission.run(
            "average_gradients", per_rank(batches(counts)), world=world, around=gradients, given=given(counts)
        )
        fail_on(run, added_on_the_way(run, SIZE, "its gradients"), given(counts))


@pytest.mark.points(1)
def test_gradients_of_a_group(submission):
    """average_gradients: among ranks 1, 2 and 4 of five, given as `group`"""
    ranks, counts = (1, 2, 4), [3, 1, 2]
    of_the_group = iter(batches(counts))
    everybody = [next(of_the_group) if rank in ranks else None for rank in range(5)]
    run = submission.run(
        "average_gradients", per_rank(everybody), world=5, group=ranks, around=gradients, given=given(counts)
    )
    fail_on(run, averaged(run, counts, ranks), given(counts))


@pytest.mark.points(3)
def test_root_messages(submission):
    """root_all_reduce: everybody's tensor to the root, the sum back to everybody, and nothing else"""
    for world in WORLDS:
        run = submission.run("root_all_reduce", own_numbers(world, 2 * world + 1), world=world)
        fail_on(run, messages(run, through_root(world, 0), "all-reduce through rank 0", in_order=False))


@pytest.mark.points(2)
def test_root_sums(submission):
    """root_all_reduce: every rank ends with the sum, in place"""
    for world in (1, *WORLDS):
        for size in (2 * world + 1, 1):
            run = submission.run("root_all_reduce", own_numbers(world, size), world=world)
            fail_on(run, holdings(run, the_sum(world)))


@pytest.mark.points(2)
def test_another_root(submission):
    """root_all_reduce: any rank may be the root"""
    for world in WORLDS:
        for root in {1, world - 1}:
            run = submission.run("root_all_reduce", own_numbers(world, 5), root, world=world)
            name = f"all-reduce through rank {root}"
            fail_on(run, messages(run, through_root(world, root), name, in_order=False))
            fail_on(run, holdings(run, the_sum(world)))


@pytest.mark.points(2)
def test_bytes_through_the_root(submission):
    """root_all_reduce: (N-1) S bytes into the root and out of it, S each way for all others"""
    for world in WORLDS:
        floats = [torch.randn(5, 3, 7, generator=torch.Generator().manual_seed(rank)) for rank in range(world)]
        run = submission.run("root_all_reduce", per_rank(floats), world=world)
        expected = [(world - 1) * floats[0].nbytes, *[floats[0].nbytes] * (world - 1)]
        formulas = [f"{world - 1} S", *["S"] * (world - 1)]
        fail_on(run, sent_bytes(run, expected, formulas, "all-reduce through rank 0"))
        fail_on(run, received_bytes(run, expected, formulas, "all-reduce through rank 0"))
        fail_on(run, tensors(run, [sum(floats)] * world, tolerance=1e-5))


@pytest.mark.points(1)
def test_root_of_a_group(submission):
    """root_all_reduce: ranks 1, 2 and 4 of five, given as `group`, through its last one"""
    members = (1, 2, 4)
    everybody = [provenance(3, members.index(r) if r in members else 0, 5) for r in range(5)]
    run = submission.run("root_all_reduce", per_rank(everybody), 2, world=5, group=members)
    fail_on(run, messages(run, through_root(3, 2), "all-reduce through rank 4", members, in_order=False))
    fail_on(run, holdings(run, the_sum(3), members))
