"""The tests of the exercise `sharded`: whose elements are whose, who calls what when, what is kept, and the bytes.

Each rank is given the ring's reduce-scatter and all-gather, so all that is sent is in the record, and each call of them
is. Of an average that comes out wrong the message says which mixture of the ranks' gradients g[r] it is.
"""

import random
from functools import partial

import pytest
import torch
import torch.distributed as dist

from dtcourse import per_rank
from dtcourse.collectives.ring import ring_all_gather, ring_reduce_scatter
from dtcourse.grading.findings import Finding, explained_by, fail_on, number_of
from dtcourse.grading.living import Living
from dtcourse.grading.messages import nothing_hidden, sent_bytes
from dtcourse.grading.mixtures import Mistake, difference, mixture, text
from dtcourse.grading.partition import drawn, not_a_partition
from dtcourse.grading.sharding import (
    ALL_GATHER,
    BACKWARD,
    FORWARD,
    REDUCE_SCATTER,
    STILL,
    UPDATE,
    call_of,
    calls,
    elements,
    layer,
    of_layer,
    own_span,
    still_there,
    told,
)
from dtcourse.raw import dtype_name

WORLDS = (2, 3, 4)
COUNTS = (3, 1, 4, 2, 2)  # samples of each rank
MEMBERS = (1, 2, 4)  # of five ranks
LR, MOMENTUM = 0.25, 0.5


def lengths_of(world):
    """Three layers; of each a rank owns more elements than there are ranks.

    No layer is as long as some neighbouring chunks of another, or as one that is padded: a tensor of a layer's length
    has something to do with that layer.
    """
    return {2: (9, 15, 12), 3: (16, 22, 27), 4: (25, 30, 36)}[world]


def short(world):
    """One tensor of many elements; fewer elements than ranks; none."""
    return [lengths_of(world)[0], world - 1, 0]


def shares_of(world):
    return [n / sum(COUNTS[:world]) for n in COUNTS[:world]]


def drawn_numbers(submission, world, lengths):
    """For each rank a list of tensors of these lengths."""
    draw = torch.Generator().manual_seed(submission.seed)
    return [[torch.randn(n, dtype=torch.float64, generator=draw) for n in lengths] for _ in range(world)]


def average(gradients, shares):
    return sum(share * gradient for share, gradient in zip(shares, gradients, strict=True))


# -- in the ranks ------------------------------------------------------------------------------------------------------


def given_collectives(living=None, layers=None):
    """reduce_scatter and all_gather; `living`: what is there of other layers is told when one is gathered."""

    def size(x, group=None):
        return {"elements": x.numel()}

    def gathers(x, group=None):
        here = () if living is None else [layers.get(x.nbytes)]
        return size(x) | ({} if living is None else still(living, layers, here))

    return {
        "reduce_scatter": told(REDUCE_SCATTER, size, lambda x, group=None: ring_reduce_scatter(x, group)),
        "all_gather": told(ALL_GATHER, gathers, lambda x, group=None: ring_all_gather(x, group)),
    }


GIVEN = given_collectives()
REDUCES = {"reduce_scatter": GIVEN["reduce_scatter"]}
GATHERS = {"all_gather": GIVEN["all_gather"]}


def seen(value):
    """A tensor, and the bytes that are kept in memory for it; anything else by its type."""
    if isinstance(value, torch.Tensor):
        return value.detach(), value.untyped_storage().nbytes()
    return ("None" if value is None else f"a {type(value).__name__}"), 0


def seen_list(values):
    return [seen(value) for value in values] if isinstance(values, (list, tuple)) else seen(values)[0]


def asked(own_part, lengths, world):
    """What own_part returns for each length: numbers of elements, or what it is, in words."""
    found = []
    for length in lengths:
        part = own_part(length, dist.get_rank(), world)
        found.append(list(range(length))[part] if isinstance(part, slice) else repr(part))
    return found


def averages(average_own, gradients, share, **group):
    """Each rank calls your average_own with its gradient."""
    return [seen(average_own(gradient, share, **REDUCES, **group)) for gradient in gradients]


class Optimizer:
    """SGD with momentum, which keeps a velocity for as many elements as it is given first."""

    def __init__(self):
        self.velocity = None
        self.update = told(UPDATE, self._sizes, self._update)

    def _sizes(self, weights, gradient):
        if weights.shape != gradient.shape:
            raise TypeError(f"update was given {len(weights)} weights and {len(gradient)} elements of a gradient")
        return {"elements": weights.numel()}

    def _update(self, weights, gradient):
        self.velocity = gradient.clone() if self.velocity is None else MOMENTUM * self.velocity + gradient
        weights -= LR * self.velocity


def steps(zero_1_step, parameters, gradients, share, **group):
    """Each rank calls your zero_1_step, once for each gradient."""
    optimizer, stands = Optimizer(), []
    for gradient in gradients:
        zero_1_step(parameters, gradient.clone(), share, optimizer.update, **GIVEN, **group)
        stands.append(parameters.clone())
    return stands


def gone_back(zero_2_gradients, gradients, share, **group):
    """Each rank calls your zero_2_gradients with a backward that has its gradients."""
    layers = {gradient.nbytes: i for i, gradient in enumerate(gradients)}

    def backward(i):
        with living.aside():
            gradient = gradients[i].clone()
            living.follow(gradient, f"the whole gradient of layer {i}")
            return gradient

    with Living() as living:
        labels = lambda i: layer(BACKWARD, i, len(gradients)) | still(living, layers)  # noqa: E731
        found = zero_2_gradients(len(gradients), told(BACKWARD, labels, backward), share, **REDUCES, **group)
    return seen_list(found)


def still(living, layers, but=()):
    """The label that says what should not be there any more, if something is."""
    found = still_there(living.there(), layers, but) if dist.get_world_size() > 1 else ""  # alone, own parts are whole
    return {STILL: found} if found else {}


def gathered(gather, whole, **group):
    """Each rank calls your gather with its own part."""
    found = []
    for tensor in whole:
        own = tensor[own_span(len(tensor), dist.get_rank(**group), dist.get_world_size(**group))].clone()
        before = own.clone()
        found.append((*seen(gather(own, len(tensor), **GATHERS, **group)), torch.equal(own, before)))
    return found


def both_ways(zero_3_gradients, weights, gradients, share, **group):
    """Each rank calls your zero_3_gradients with its own parts."""
    rank, world = dist.get_rank(**group), dist.get_world_size(**group)
    lengths, layers = [len(w) for w in weights], {w.nbytes: i for i, w in enumerate(weights)}
    parts = [w[own_span(len(w), rank, world)].clone() for w in weights]
    before, met = [part.clone() for part in parts], []

    def labels(way, i, parameters):
        label, name = layer(way, i, len(weights)), f"the gathered layer {i}"
        with living.aside():
            met.append(seen(parameters)[0].clone() if isinstance(parameters, torch.Tensor) else seen(parameters)[0])
        if isinstance(parameters, torch.Tensor):
            living.follow(parameters, name)
        return label | still(living, layers, [name, i])

    def forward(i, parameters):
        pass

    def backward(i, parameters):
        with living.aside():
            gradient = gradients[i].clone()
            living.follow(gradient, f"the whole gradient of layer {i}")
            return gradient

    with Living() as living:
        ways = told(FORWARD, partial(labels, FORWARD), forward), told(BACKWARD, partial(labels, BACKWARD), backward)
        found = zero_3_gradients(parts, lengths, *ways, share, **given_collectives(living, layers), **group)
    kept = all(torch.equal(one, other) for one, other in zip(parts, before, strict=True))
    return {"met": met, "parts": seen_list(found), "kept": kept}


# -- findings ----------------------------------------------------------------------------------------------------------


def owned(run, number, length):
    """The findings of a run of own_part on all ranks, for the length of this number."""
    world, taken = run.world_size, [result[number] for result in run.results]
    for rank, part in enumerate(taken):
        if isinstance(part, str):
            yield Finding(f"rank {rank} returned {part}: return its elements as a slice", 0, rank)
            return
    for said in not_a_partition(taken, length, "element"):
        yield Finding(said, 0, drawing=drawn(taken, length))
        return
    for rank, part in enumerate(taken):
        if part != list(range(length))[(own := own_span(length, rank, world))]:
            it = elements(slice(part[0], part[-1] + 1)) if part else "no element"
            chunk = (rank + 1) % world
            said = f"rank {rank} takes {it}; its own part is chunk {chunk}, {elements(own)}"
            yield Finding(said, 1, rank, drawing=drawn(taken, length))


def kind(tensor):
    return f"{dtype_name(tensor.dtype)} {tuple(tensor.shape)}" if isinstance(tensor, torch.Tensor) else str(tensor)


def averaged(rank, what, found, gradients, shares, place, names):
    """What is wrong with the own part of an average, in words and a drawing; None if nothing is.

    `what`: "the gradient of layer 2", say. `gradients`: whole, of each rank. `names`: of the ranks, by their place.
    """
    (tensor, memory), own = found, own_span(len(gradients[0]), place, len(shares))
    size = own.stop - own.start
    if kind(tensor) != f"float64 ({size},)":
        expected = f"float64 ({size},), the own part: {elements(own)} of {len(gradients[0])}"
        return f"rank {rank} returned {kind(tensor)} as {what}; expected {expected}", ""
    wanted = {f"g[{name}]": share for name, share in zip(names, shares, strict=True)}
    parts = dict(zip(wanted, (gradient[own] for gradient in gradients), strict=True))
    if wrong := difference(tensor, wanted, parts, mistakes(wanted, f"g[{rank}]")):
        advice = wrong.advice or elsewhere(tensor, wanted, gradients, own)
        said = f"rank {rank} returned {wrong.seen} as {what}; expected {text(wanted)}{f'. {advice}' if advice else ''}"
        return said, wrong.drawing
    if memory > tensor.nbytes:
        said = f"rank {rank} keeps {memory} bytes in memory for the {tensor.nbytes} of {what}, its own part"
        return f"{said}: a slice is a view, clone it", ""
    return None


def mistakes(wanted, own):
    """What likely mistakes give instead of the average."""

    def each(amount):
        return {name: amount(share) for name, share in wanted.items()}

    ranks = len(wanted)
    weigh = "Every rank counts the same here: multiply each gradient by its share, and divide by nothing"
    return [
        Mistake(each(lambda s: 1), "Multiply by the share, before adding up"),
        Mistake(each(lambda s: 1 / ranks), weigh),
        Mistake(each(lambda s: s / ranks), "The shares add up to 1: nothing is to be divided besides"),
        Mistake(each(lambda s: 1 / s if s else 0), "Multiply by the share: it is less than 1"),
        Mistake(each(lambda s: s**2), "The share is in it twice"),
        Mistake(each(lambda s: wanted[own]), "That is this rank's share of the sum: multiply before adding up"),
        Mistake({own: 1}, "That is its own gradient, as it was: reduce_scatter works in place"),
        Mistake({own: wanted[own]}, "That is its own gradient times its share: reduce_scatter adds up the others'"),
    ]


def elsewhere(tensor, wanted, gradients, own):
    """Of which other elements this is a mixture, in words; empty if it is none of any."""
    for start in range(len(gradients[0]) - len(tensor) + 1):
        there = slice(start, start + len(tensor))
        if there != own and (mixed := mixture(tensor, dict(zip(wanted, (g[there] for g in gradients), strict=True)))):
            return f"It is {text(mixed)} in {elements(there)}; its own part is {elements(own)}"
    return ""


def own_parts(results, what, gradients, shares, ranks):
    """`results`: of each rank of the world its parts, one for each layer. `gradients`: of those in the group, too."""
    for place, rank in enumerate(ranks):
        parts = results[rank]
        if not isinstance(parts, list) or len(parts) != len(gradients[0]):
            it = f"a list of {len(parts)}" if isinstance(parts, list) else parts
            yield Finding(f"rank {rank} returned {it}; expected a list of {len(gradients[0])} tensors", 2, rank)
            return
        for i, part in enumerate(parts):
            of_all = [of_rank[i] for of_rank in gradients]
            if wrong := averaged(rank, what(i), part, of_all, shares, place, ranks):
                yield Finding(wrong[0], 2, rank, drawing=wrong[1])
                break


def called(expected, ranks):
    """The findings of the calls, as a function of a run. `expected(place, world)`: the calls of a rank."""

    def findings(run):
        yield from nothing_hidden(run)
        for place, rank in enumerate(ranks):
            yield from calls(run, rank, expected(place, len(ranks)))

    return findings


def sends(run, lengths, reduces, gathers, ranks):
    """Each rank sends what so many reduce-scatters and all-gathers of each of these tensors send."""
    counts, formulas = [0] * run.world_size, ["0"] * run.world_size
    for place, rank in enumerate(ranks):
        owns = [[own_span(n, (place + k) % len(ranks), len(ranks)) for n in lengths] for k in range(2)]
        mine, next_ = ([8 * (own.stop - own.start) for own in one] for one in owns)
        whole = [8 * n for n in lengths]
        counts[rank] = sum(reduces * (s - m) + gathers * (s - n) for s, m, n in zip(whole, mine, next_, strict=True))
        terms = [f"{reduces + gathers}S", *[f"{reduces} x its own part"] * bool(reduces)]
        terms += [f"{gathers} x that of the next rank"] * bool(gathers)
        formulas[rank] = " - ".join(terms)
    yield from sent_bytes(run, counts, formulas, "ZeRO")


def stands(run, parameters, gradients, shares, ranks):
    """After each step of ZeRO 1 all have the parameters that one process would have."""
    optimizer, weights, names = Optimizer(), parameters.clone(), [f"lr g[{rank}]" for rank in ranks]
    own_gradients = list(zip(*gradients, strict=True))  # for each step, those of all ranks
    for number, of_all in enumerate(own_gradients):
        before = weights.clone()
        optimizer.update(weights, average(of_all, shares))
        for rank in ranks:
            if found := wrong_parameters(
                run.results[rank][number], weights, before, of_all, shares, names, ranks, rank
            ):
                said, drawing = found
                when = "" if number == 0 else f" after {number + 1} steps"
                yield Finding(f"rank {rank} ends{when} with {said}", 2 + number, rank, drawing=drawing)


def wrong_parameters(tensor, weights, before, gradients, shares, names, ranks, rank):
    """What is wrong with the parameters of a rank after a step, in words, and a drawing; the own part first."""
    world, place = len(ranks), ranks.index(rank)
    for k in range(world):
        whose = (place + k) % world
        own = own_span(len(tensor), whose, world)
        if torch.allclose(tensor[own], weights[own], rtol=1e-9, atol=1e-9):
            continue
        its = "its own part" if k == 0 else f"the part of rank {ranks[whose]}"
        its = f"{its}, {elements(own)}"
        if torch.equal(tensor[own], before[own]):
            advice = "`update` works in the tensor that it is given: give it the parameters themselves, and no copy"
            return f"{its}, as {'it was' if k == 0 else 'it was before'}. {advice if k == 0 else ''}".rstrip(), ""
        wanted = {"w": 1} | {name: -share for name, share in zip(names, shares, strict=True)}
        parts = {"w": before[own]} | {n: LR * g[own] for n, g in zip(names, gradients, strict=True)}
        wrong = difference(tensor[own], wanted, parts)
        if wrong is None or "no adding up" in wrong.seen:
            worst = (tensor[own] - weights[own]).abs().max()
            return f"{its}, {worst:.2g} off what one process has", ""
        return f"{wrong.seen} in {its}; expected {text(wanted)}", wrong.drawing
    return None


# -- the tests ---------------------------------------------------------------------------------------------------------


def given(lengths, what="tensor"):
    """ "a tensor of 9 elements", "layers of 9, 11 and 10 elements"."""
    *first, last = map(str, lengths)
    return f"{what}s of {', '.join(first)} and {last} elements" if first else f"a {what} of {last} elements"


@pytest.mark.points(2)
def test_own_part(submission):
    """own_part: each element is some rank's own, chunk j+1 is that of rank j"""
    for world in (*WORLDS, 5, 1):
        lengths = (2 * world, 2 * world + 1, 3 * world - 1, world - 1, 0)
        run = submission.run("own_part", lengths, world, world=world, around=asked, given="several lengths")
        for number, length in enumerate(lengths):
            fail_on(run, owned(run, number, length), number_of(length, "element"))


def members(world, values, group):
    """For each of `world` ranks its value; who is not in the group is given the first one's, and does not use it."""
    return values if group is None else [values[group.index(r)] if r in group else values[0] for r in range(world)]


class Asked:
    """One function of the submission, called on all ranks of a world or of a group of them; and what that shows."""

    def __init__(self, submission, name, around, *, given, world, group=None):
        self.submission, self.name, self.around, self.given = submission, name, around, given
        self.world, self.group = world, group
        self.ranks = group or tuple(range(world))

    def run(self, *of_each, expected):
        """`of_each`: lists, an argument for each rank of the group. `expected(place, world)`: the calls of a rank."""
        arguments = [per_rank(members(self.world, values, self.group)) for values in of_each]
        findings = called(expected, self.ranks)
        with explained_by(findings, self.given):
            self.done = self.submission.run(
                self.name, *arguments, world=self.world, group=self.group, around=self.around, given=self.given
            )
        self.fail_on(findings(self.done))
        return self.done

    def fail_on(self, findings):
        fail_on(self.done, findings, self.given)


def check_average_own(submission, world, lengths, counts, group=None):
    """Run average_own for tensors of these lengths, on ranks that had so many samples."""
    said = f"{given(lengths)}, {' + '.join(map(str, counts))} samples"
    asks = Asked(submission, "average_own", averages, given=said, world=world, group=group)
    gradients, shares = drawn_numbers(submission, len(counts), lengths), [n / sum(counts) for n in counts]
    run = asks.run(gradients, shares, expected=lambda *_: [call_of(REDUCE_SCATTER, n) for n in lengths])
    asks.fail_on(own_parts(run.results, lambda i: "the average", gradients, shares, asks.ranks))
    asks.fail_on(sends(run, lengths, 1, 0, asks.ranks))


@pytest.mark.points(3)
def test_average_own(submission):
    """average_own: the own part of the average, and no more than that"""
    for world in WORLDS:
        check_average_own(submission, world, lengths_of(world)[:1], [1] * world)
        check_average_own(submission, world, short(world), COUNTS[:world])
    check_average_own(submission, 2, lengths_of(2)[:1], [3, 0])


def check_zero_1(submission, world, length, group=None):
    """Two steps of ZeRO 1."""
    said = f"{number_of(length, 'element')}, 2 steps"
    asks = Asked(submission, "zero_1_step", steps, given=said, world=world, group=group)
    size = len(asks.ranks)
    gradients, shares = drawn_numbers(submission, size, [length] * 2), shares_of(size)
    parameters = torch.linspace(-1, 1, length, dtype=torch.float64).square()

    def expected(place, world):
        own = own_span(length, place, world)
        step = [(REDUCE_SCATTER, length), (UPDATE, own.stop - own.start), (ALL_GATHER, length)]
        return [call_of(*call) for call in 2 * step]

    run = asks.run([parameters] * size, gradients, shares, expected=expected)
    asks.fail_on(stands(run, parameters, gradients, shares, asks.ranks))
    asks.fail_on(sends(run, [length] * 2, 1, 1, asks.ranks))


@pytest.mark.points(3)
def test_zero_1_step(submission):
    """zero_1_step: each rank updates its own part, then all get the others'"""
    for world in WORLDS:
        check_zero_1(submission, world, lengths_of(world)[1])
        check_zero_1(submission, world, world - 1)


def check_zero_2(submission, world, lengths, group=None):
    """The backward pass of a model with layers of these lengths."""
    asks = Asked(submission, "zero_2_gradients", gone_back, given=given(lengths, "layer"), world=world, group=group)
    size = len(asks.ranks)
    gradients, shares = drawn_numbers(submission, size, lengths), shares_of(size)

    def expected(place, world):
        back = reversed(list(enumerate(lengths)))
        return [call for i, n in back for call in (of_layer(BACKWARD, i), call_of(REDUCE_SCATTER, n))]

    run = asks.run(gradients, shares, expected=expected)
    asks.fail_on(own_parts(run.results, gradient_of, gradients, shares, asks.ranks))
    asks.fail_on(sends(run, lengths, 1, 0, asks.ranks))


def gradient_of(layer):
    return f"the gradient of layer {layer}"


@pytest.mark.points(3)
def test_zero_2_gradients(submission):
    """zero_2_gradients: own parts of all gradients, and no whole one that stays"""
    for world in WORLDS:
        check_zero_2(submission, world, lengths_of(world))


def check_gather(submission, world, lengths, group=None):
    """Gather tensors of these lengths."""
    asks = Asked(submission, "gather", gathered, given=given(lengths), world=world, group=group)
    whole = drawn_numbers(submission, 1, lengths)
    run = asks.run(whole * len(asks.ranks), expected=lambda *_: [call_of(ALL_GATHER, n) for n in lengths])
    asks.fail_on(complete(run, whole[0], asks.ranks))
    asks.fail_on(sends(run, lengths, 0, 1, asks.ranks))


def complete(run, whole, ranks):
    """The findings of a run of gather: each rank has all of these tensors."""
    for place, rank in enumerate(ranks):
        for tensor, (found, _, kept) in zip(whole, run.results[rank], strict=True):
            if said := other_than(tensor, found, place, ranks):
                yield Finding(f"rank {rank} returned {said}", 2, rank)
                break
            if not kept:
                yield Finding(f"rank {rank} changed its own part, which it was given", 3, rank)


def other_than(whole, found, place, ranks):
    """How what a rank has differs from the whole tensor, in words, or None; the own part first."""
    if kind(found) != kind(whole):
        return f"{kind(found)}; expected {kind(whole)}, the whole tensor"
    for k in range(len(ranks)):
        whose = (place + k) % len(ranks)
        own = own_span(len(whole), whose, len(ranks))
        if not torch.equal(found[own], whole[own]):
            its = "its own part" if k == 0 else f"the part of rank {ranks[whose]}"
            return f"{what_is(found, own, whole)} in {elements(own)}; {its} belongs there"
    return None


def what_is(found, own, whole):
    """What is in the place of a part, in words."""
    if not found[own].any():
        return "zeros"
    size = own.stop - own.start
    starts = [start for start in range(len(whole) - size + 1) if torch.equal(found[start : start + size], whole[own])]
    return (
        f"that part in {elements(slice(starts[0], starts[0] + size))}, and something else"
        if starts
        else "something else"
    )


@pytest.mark.points(2)
def test_gather(submission):
    """gather: the whole tensor, from the own parts"""
    for world in WORLDS:
        check_gather(submission, world, short(world))


def check_zero_3(submission, world, lengths, group=None):
    """Both passes of a model with layers of these lengths."""
    asks = Asked(submission, "zero_3_gradients", both_ways, given=given(lengths, "layer"), world=world, group=group)
    size, numbers = len(asks.ranks), range(len(lengths))
    weights, gradients = drawn_numbers(submission, 1, lengths), drawn_numbers(submission, size + 1, lengths)[1:]

    def expected(place, world):
        there = [call for i in numbers for call in (call_of(ALL_GATHER, lengths[i]), of_layer(FORWARD, i))]
        for i in reversed(numbers):
            there += [call_of(ALL_GATHER, lengths[i]), of_layer(BACKWARD, i), call_of(REDUCE_SCATTER, lengths[i])]
        return there

    run = asks.run(weights * size, gradients, shares_of(size), expected=expected)
    asks.fail_on(met(run, weights[0], asks.ranks))
    parts = [result["parts"] if result else None for result in run.results]  # None: not in the group
    asks.fail_on(own_parts(parts, gradient_of, gradients, shares_of(size), asks.ranks))
    asks.fail_on(sends(run, lengths, 1, 2, asks.ranks))


def met(run, weights, ranks):
    """Forward and backward were given the whole parameters of their layer, and the own parts are as they were."""
    last = len(weights) - 1
    for place, rank in enumerate(ranks):
        for number, found in enumerate(run.results[rank]["met"]):
            name, i = (FORWARD, number) if number <= last else (BACKWARD, 2 * last + 1 - number)
            if said := other_than(weights[i], found, place, ranks):
                yield Finding(f"rank {rank} called {name}({i}, parameters) with {said}", 1, rank)
                break
        if not run.results[rank]["kept"]:
            yield Finding(f"rank {rank} changed its own parts of the parameters, which it was given", 3, rank)


@pytest.mark.points(4)
def test_zero_3_gradients(submission):
    """zero_3_gradients: each layer is gathered, computes, and is gone, in both passes"""
    for world in WORLDS:
        check_zero_3(submission, world, lengths_of(world))


# -- memory ------------------------------------------------------------------------------------------------------------

ADAM = (2, 2, 12)


def kept(stage, length, rank, world, parameter, gradient, state):
    """The formula."""
    own = own_span(length, rank, world)
    sizes = [length if stage < sharded else own.stop - own.start for sharded in (3, 2, 1)]
    return sum(size * bytes_ for size, bytes_ in zip(sizes, (parameter, gradient, state), strict=True))


CASES = [
    (stage, length, rank, world, *bytes_)
    for bytes_ in (ADAM, (4, 4, 8), (8, 3, 5))
    for world in (4, 3, 1)
    for length in (12, 14, 2)
    for stage in range(4)
    for rank in range(world)
]


def all_of(memory, cases):
    """Your memory() of each case."""
    return [memory(*case) for case in cases]


def remembered(run):
    """The first case in which memory() is wrong."""
    for case, seen in zip(CASES, run.results[0], strict=True):
        if seen != kept(*case):
            said = f"memory({', '.join(map(str, case))}) returned {seen!r}; it is {formula(*case)} = {kept(*case)}"
            names = enumerate(("plain data parallelism", "ZeRO 1", "ZeRO 2", "ZeRO 3"))
            others = [name for stage, name in names if seen == kept(stage, *case[1:])]
            yield Finding(f"{said}. {seen} is what {others[0]} keeps" if others else said)
            return


def formula(stage, length, rank, world, *bytes_):
    own = own_span(length, rank, world)
    sizes = [own.stop - own.start if stage >= sharded else length for sharded in (3, 2, 1)]
    return " + ".join(f"{b} x {n}" for b, n in zip(bytes_, sizes, strict=True))


@pytest.mark.points(2)
def test_memory(submission):
    """memory: what each stage keeps, to the byte"""
    run = submission.run("memory", CASES, world=1, around=all_of, given="several stages")
    fail_on(run, remembered(run), "several stages")


# -- all together ------------------------------------------------------------------------------------------------------

SIZES = ((6, 9), (9, 7), (7, 3))  # outputs and inputs swapped: (inputs, outputs) of three layers
SAMPLES = (3, 0, 2)


def computed(i, parameters, x):
    """A layer of the model: linear, and tanh but for the last."""
    inputs, outputs = SIZES[i]
    y = x @ parameters[: inputs * outputs].view(inputs, outputs) + parameters[inputs * outputs :]
    return y.tanh() if i < len(SIZES) - 1 else y


def initial():
    draw = torch.Generator().manual_seed(0)
    return [torch.randn((a + 1) * b, dtype=torch.float64, generator=draw) / a for a, b in SIZES]


def batches():
    draw = torch.Generator().manual_seed(1)
    return [torch.randn(sum(SAMPLES), SIZES[0][0], dtype=torch.float64, generator=draw) for _ in range(3)]


class Passes:
    """Forward and backward through the model, layer by layer; the loss is the mean of squares over the samples."""

    def __init__(self, x):
        self.inputs, self.slope = [x], None

    def forward(self, i, parameters):
        self.inputs.append(computed(i, parameters, self.inputs[i]))

    def backward(self, i, parameters):
        outputs = self.inputs[-1]
        slope = 2 * outputs / max(outputs.numel(), 1) if self.slope is None else self.slope
        x, parameters = (t.detach().clone().requires_grad_() for t in (self.inputs[i], parameters))
        self.slope, gradient = torch.autograd.grad(computed(i, parameters, x), (x, parameters), slope)
        return gradient


def training(functions, stage):
    """Three steps of a model of three layers, on batches of which the ranks have 3, 0 and 2 samples."""
    own_part, zero_1_step, zero_2_gradients, gather, zero_3_gradients = functions
    rank, world = dist.get_rank(), dist.get_world_size()
    whole, optimizers = initial(), [Optimizer() for _ in SIZES]
    parts = [w[own_part(len(w), rank, world)].clone() for w in whole]
    start, share = sum(SAMPLES[:rank]), SAMPLES[rank] / sum(SAMPLES)
    for batch in batches():
        passes = Passes(batch[start : start + SAMPLES[rank]])
        if stage == 3:
            own = zero_3_gradients(parts, [len(w) for w in whole], passes.forward, passes.backward, share, **GIVEN)
        else:
            for i, w in enumerate(whole):
                passes.forward(i, w)
        if stage == 2:
            own = zero_2_gradients(len(whole), lambda i: passes.backward(i, whole[i]), share, **REDUCES)  # noqa: B023
        for i in reversed(range(len(whole))):
            if stage == 1:
                zero_1_step(whole[i], passes.backward(i, whole[i]), share, optimizers[i].update, **GIVEN)
                continue
            optimizers[i].update(parts[i], own[i])
            if stage == 2:
                whole[i] = gather(parts[i], len(whole[i]), **GATHERS)
    return whole if stage < 3 else [gather(part, len(w), **GATHERS) for part, w in zip(parts, whole, strict=True)]


def alone():
    """What one process has in the end."""
    weights, optimizers = initial(), [Optimizer() for _ in SIZES]
    for batch in batches():
        passes = Passes(batch)
        for i, w in enumerate(weights):
            passes.forward(i, w)
        for i in reversed(range(len(weights))):
            optimizers[i].update(weights[i], passes.backward(i, weights[i]))
    return weights


FUNCTIONS = ("own_part", "zero_1_step", "zero_2_gradients", "gather", "zero_3_gradients")


@pytest.mark.points(3)
def test_training(submission):
    """all: three steps of training with each stage end like those of one process"""
    for stage in (1, 2, 3):
        given = f"ZeRO {stage}, 3 steps, {' + '.join(map(str, SAMPLES))} samples"
        run = submission.run(FUNCTIONS, stage, world=len(SAMPLES), around=training, given=given)
        fail_on(run, like_one_process(run, alone()), given)


def like_one_process(run, expected):
    for rank, weights in enumerate(run.results):
        for i, (found, wanted) in enumerate(zip(weights, expected, strict=True)):
            if not torch.allclose(found, wanted, rtol=1e-9, atol=1e-9):
                worst = (found - wanted).abs().max()
                yield Finding(f"rank {rank} ends with parameters of layer {i} that are {worst:.2g} off", 0, rank)


@pytest.mark.points(1)
def test_group(submission):
    """all: among ranks 1, 2 and 4 of five, given as `group`"""
    lengths = lengths_of(3)
    check_average_own(submission, 5, lengths[:1], COUNTS[:3], MEMBERS)
    check_zero_1(submission, 5, lengths[0], MEMBERS)
    check_zero_2(submission, 5, lengths, MEMBERS)
    check_gather(submission, 5, lengths[:1], MEMBERS)
    check_zero_3(submission, 5, lengths, MEMBERS)


@pytest.mark.points(1)
def test_one_rank(submission):
    """all: one rank alone owns everything"""
    check_average_own(submission, 1, [5], [3])
    check_zero_1(submission, 1, 5)
    check_zero_2(submission, 1, [5, 4])
    check_gather(submission, 1, [5])
    check_zero_3(submission, 1, [5, 4])


@pytest.mark.hidden
@pytest.mark.points(2)
def test_drawn_lengths(submission):
    """average_own, zero_1_step, gather: lengths that are drawn"""
    draw = random.Random(submission.seed)
    for world in WORLDS:
        lengths = draw.sample(range(4 * world, 12 * world), 2)
        check_average_own(submission, world, lengths, COUNTS[:world])
        check_zero_1(submission, world, lengths[0])
        check_gather(submission, world, lengths)
