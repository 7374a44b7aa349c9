"""The tests of the exercise `buckets`: which parameter is where, what travels when, and what is in the gradients then.

The model of `overlap` is five layers of 3 features. Where its backward pass has gone through a layer, it marks that and
takes a moment, so that it can be told which all-reduce started when. All numbers are float64; of a gradient that comes
out wrong, the message says which mixture of the ranks' gradients g[r] it is.
"""

import random
import time
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn

from dtcourse.events import mark, region
from dtcourse.grading.bucketing import MIB, Bucket, Case, assignment, travelled
from dtcourse.grading.findings import Finding, explained_by, fail_on
from dtcourse.grading.mixtures import Mistake, difference

# -- which parameter is in which bucket --------------------------------------------------------------------------------

WITHIN = "A bucket takes in one parameter after the other until it holds the limit or more"
EVEN = [
    Case([4, 4, 4, 4], "aaaa", 8, 8, WITHIN),
    Case([4, 4, 4, 4, 4], "aaaaa", 8, 4, "The first bucket is closed with less than the others"),
    Case([1, 2, 3], "aaa", 6, 6, WITHIN),
    Case([2, 2, 2], "aaa", 25, 25, "All fit into one bucket"),
]
UNEVEN = [
    Case([4, 4, 4, 4], "aaaa", 9, 4, WITHIN),
    Case([4, 99, 4, 4], "aaaa", 8, 4, f"{WITHIN}: so one may hold more, and no parameter is cut in two"),
    Case([99, 1, 1], "aaa", 2, 1, "A parameter that is larger than a bucket is alone in it, or its last"),
    Case([0.5, 30, 26, 0.25, 0.5], "aaaaa", 25, 1, WITHIN),
    Case([7], "a", 25, 1, "One parameter is one bucket"),
    Case([1, 0, 1], "aaa", 1, 1, WITHIN),
]
TO_THE_BYTE = [
    Case([24.5, 0.5, 1], "aaa", 25, 1, "A MiB is 2**20 bytes"),
    Case([1, 24.9, 1], "aaa", 25, 1, "A MiB is 2**20 bytes"),
    Case([1, 0.96, 0.04], "aaa", 25, 0.96, "A MiB is 2**20 bytes"),
]
MIXED = [
    Case([4, 4, 4, 4], "abab", 8, 8, "A parameter of another dtype goes past the open bucket, and does not close it"),
    Case([4, 4, 4, 4, 4, 4], "abbaab", 8, 4, "Each dtype has a smaller first bucket of its own"),
    Case([1, 1, 1, 1, 1, 1, 1], "abcabca", 2, 1, "Each dtype has a smaller first bucket of its own"),
]
DTYPES = {"a": torch.float32, "b": torch.bfloat16, "c": torch.float64}


def some(number, seed):
    draw = random.Random(seed)
    return [
        Case([draw.choice([0.25, 0.5, 1, 2, 4, 30]) for _ in range(count)],
             "".join(draw.choice("ab") for _ in range(count)), draw.choice([2, 4, 25]), draw.choice([0.5, 1]))
        for count in sorted(draw.randint(1, 12) for _ in range(number))
    ]  # fmt: skip


def asked(assign, cases):
    """What assign() gives for each case."""
    return [
        assign([int(size * MIB) for size in case.sizes], [DTYPES[d] for d in case.dtypes], case.bucket, case.first)
        for case in cases
    ]


def assigned(submission, cases):
    run = submission.run("assign", cases, world=1, around=asked, given=None)
    for seen, case in zip(run.results[0], cases, strict=True):
        if said := assignment(seen, case):
            fail_on(run, [Finding(said)], "")


# -- the averages ------------------------------------------------------------------------------------------------------


def averaged(run, own, names, ranks, step=5):
    """Each of the ranks ends with the mean of all ranks' gradients. `own`: of each rank, by name; None counts as 0."""
    for rank in ranks:
        for name in names:
            seen, mine = run.results[rank][name], [one[name] for one in own]
            like = next((g for g in mine if g is not None), seen)
            if not isinstance(seen, torch.Tensor):
                said = (
                    f"rank {rank} ends with None as gradient of {name}; it has to be the mean of all ranks', also here"
                )
                yield Finding(f"{said}, where it was not used", step, rank)
                break
            if like is seen or seen.shape != like.shape:
                continue
            there = {f"g[{r}]": g for r, g in zip(ranks, mine, strict=True) if g is not None}
            each = 1 / len(ranks)
            if found := difference(seen, dict.fromkeys(there, each), there, mistakes(rank, there, each)):
                formula = " + ".join(f"1/{len(ranks)} {g}" for g in there)
                said = f"rank {rank} ends with {found.seen} as gradient of {name}; it has to be {formula}"
                advice = f". {found.advice}" if found.advice else ""
                yield Finding(said + advice, step, rank, drawing=found.drawing)
                break


def mistakes(rank, there, each):
    mine = f"g[{rank}]"
    early = "That is its own part alone: wait() before reading what the all-reduce gives"
    return [
        Mistake(dict.fromkeys(there, 1), "That is the sum: divide by the number of ranks"),
        Mistake({mine: 1}, "That is its own gradient, as it was: the average has to be in parameter.grad"),
        Mistake({mine: each}, early),
        Mistake(dict.fromkeys(there, each * each), "That is divided twice"),
        Mistake({}, "It was not there yet when its bucket started, or it was left out"),
        Mistake(dict.fromkeys(there, 1 / len(there)), "Ranks that have not used it count, too: divide by N"),
    ]


# -- one bucket --------------------------------------------------------------------------------------------------------

SHAPES = {"a weight": (2, 3), "a bias": (3,), "a scale": (), "a table": (3, 2)}
ONE_BUCKET = "one bucket of 4 parameters"


def parameters_of(rank, unused):
    """Parameters with a gradient each, one of them not contiguous; without, where rank and name are in `unused`."""
    draw = torch.Generator().manual_seed(10 + rank)
    made = {name: nn.Parameter(torch.zeros(shape, dtype=torch.float64)) for name, shape in SHAPES.items()}
    for name, parameter in made.items():
        gradient = torch.randn(parameter.shape, dtype=torch.float64, generator=draw)
        parameter.grad = (
            None if (rank, name) in unused else gradient.mT.contiguous().mT if gradient.dim() == 2 else gradient
        )
    return made


def one_bucket(functions, unused=(), **group):
    """Each rank has gradients, calls your start(), and then your finish(); the last one is late."""
    (start, finish), rank = functions, dist.get_rank(**group)
    made = parameters_of(rank, unused)
    with region("backward", step=0):
        if rank == dist.get_world_size(**group) - 1:
            time.sleep(0.04)
        started = start(list(made.values()), **group)
    with region("wait for all", step=0):
        finish(list(made.values()), started, **group)
    return {name: parameter.grad for name, parameter in made.items()}


def one_bucket_checked(submission, world, unused=(), group=None):
    members = group or range(world)
    given = f"{ONE_BUCKET}{', not all used everywhere' if unused else ''}"
    own = [{n: p.grad for n, p in parameters_of(r, unused).items()} for r in range(len(members))]
    size = sum(p.numel() for p in parameters_of(0, ()).values())
    findings = partial(travelled, ranks=members, buckets=[[Bucket(size)]] * len(members))
    with explained_by(findings, given):
        run = submission.run(("start", "finish"), unused, world=world, group=group, around=one_bucket, given=given)
    fail_on(run, findings(run), given)
    fail_on(run, averaged(run, own, SHAPES, members), given)


# -- overlap -----------------------------------------------------------------------------------------------------------

FEATURES, MOMENT = 3, 0.01  # seconds
BUCKETS = [["4.bias", "4.weight"], ["3.bias", "3.weight", "2.bias"], ["2.weight"], ["1.bias"],
           ["1.weight", "0.bias", "0.weight"]]  # fmt: skip
NAMES = [name for bucket in BUCKETS for name in bucket]
CHAIN = (0, 1, 2, 3, 4)


class Passed(torch.autograd.Function):
    """Where the backward pass has gone through a layer."""

    @staticmethod
    def forward(ctx, x, layer, step):
        ctx.layer, ctx.step = layer, step
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(MOMENT)
        mark("after", layer=ctx.layer, step=ctx.step)
        return gradient, None, None


def layers():
    torch.manual_seed(5)
    return nn.ModuleList(nn.Linear(FEATURES, FEATURES).double() for _ in CHAIN)


def loss_of(model, rank, path, step=0, through=Passed.apply):
    x = torch.randn(2, FEATURES, dtype=torch.float64, generator=torch.Generator().manual_seed(100 * step + rank))
    x.requires_grad_()
    for layer in path:
        x = torch.tanh(model[layer](through(x, layer, step)))
    return x.square().sum()


def training(overlap, paths, steps, **group):
    """Each rank builds the model and calls your overlap(); in each step backward(), and what overlap() has returned."""
    rank, model = dist.get_rank(**group), layers()
    named = dict(model.named_parameters())
    wait = overlap([[named[name] for name in bucket] for bucket in BUCKETS], **group)
    if not callable(wait):
        return repr(wait)
    for step in range(steps):
        loss = loss_of(model, rank, paths[rank], step)
        with region("backward", step=step):
            if rank == dist.get_world_size(**group) - 1:
                time.sleep(0.02)
            loss.backward()
        with region("wait for all", step=step):
            wait()
        seen = {name: parameter.grad for name, parameter in named.items()}
        if step < steps - 1:
            descend(model)
    return seen


def descend(model):
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter -= 0.1 * parameter.grad
            parameter.grad = None


def own_gradients(paths, steps):
    """What each rank has alone in the last step, after the steps before with the averages."""
    model, ranks = layers(), range(len(paths))
    for step in range(steps):
        own = []
        for rank in ranks:
            loss_of(model, rank, paths[rank], step, through=lambda x, *_: x).backward()
            own.append({name: p.grad for name, p in model.named_parameters()})
            model.zero_grad()
        for name, parameter in model.named_parameters():
            used = [one[name] for one in own if one[name] is not None]
            parameter.grad = sum(used, torch.zeros_like(parameter)) / len(ranks)
        descend(model)
    return own


def no_function(run, ranks):
    """What training() gives for an overlap() that returns none."""
    for rank in ranks:
        if isinstance(seen := run.results[rank], str):
            yield Finding(f"overlap() returned {seen} on rank {rank}: return the function that ends a step", rank=rank)


def buckets_on(path):
    """The buckets as they get complete in a backward pass through the layers of `path`."""
    elements, order = {"weight": FEATURES**2, "bias": FEATURES}, list(reversed(path))
    found, last = [], 0
    for bucket in BUCKETS:
        parts = [name.split(".") for name in bucket]
        last = max([last, *(order.index(int(n)) if int(n) in order else len(CHAIN) for n, _ in parts)])
        layer = order[last] if last < len(order) else None
        before = order[last - 1] if layer is not None and last else None
        found.append(Bucket(sum(elements[kind] for _, kind in parts), layer, before))
    return found


def overlapped(submission, paths, steps=1, world=None, group=None, given="5 layers in 5 buckets"):
    world, members = world or len(paths), group or range(len(paths))
    buckets = [buckets_on(path) for path in paths]
    findings = partial(travelled, ranks=members, buckets=buckets, steps=steps)
    with explained_by(findings, given):
        run = submission.run("overlap", paths, steps, world=world, group=group, around=training, given=given)
    fail_on(run, no_function(run, members), given)
    fail_on(run, findings(run), given)
    fail_on(run, averaged(run, own_gradients(paths, steps), NAMES, members, 10 * steps), given)


# -- the tests ---------------------------------------------------------------------------------------------------------


@pytest.mark.points(2)
def test_even(submission):
    """assign: from the last parameter to the first, into buckets of a size"""
    assigned(submission, EVEN)


@pytest.mark.points(3)
def test_uneven(submission):
    """assign: parameters that do not fit, and some that are larger than a bucket"""
    assigned(submission, UNEVEN + TO_THE_BYTE)


@pytest.mark.points(2)
def test_dtypes(submission):
    """assign: each dtype has buckets of its own"""
    assigned(submission, MIXED)


@pytest.mark.hidden
@pytest.mark.points(1)
def test_drawn(submission):
    """assign: parameters that are drawn"""
    assigned(submission, some(100, submission.seed))


@pytest.mark.points(3)
def test_one_bucket(submission):
    """start and finish: one all-reduce, waited for in the end, and the average"""
    for world in (2, 1, 3):
        one_bucket_checked(submission, world)


@pytest.mark.points(2)
def test_a_bucket_with_gaps(submission):
    """start and finish: a parameter that some ranks have not used"""
    one_bucket_checked(submission, 3, unused=((0, "a bias"), (2, "a table"), (2, "a scale")))


@pytest.mark.points(4)
def test_overlap(submission):
    """overlap: each bucket starts as soon as its gradients are there"""
    for world in (2, 1, 3):
        overlapped(submission, [CHAIN] * world)


@pytest.mark.points(3)
def test_in_order(submission):
    """overlap: in the order of the buckets, though the gradients come in another one"""
    other = (0, 1, 3, 2, 4)
    overlapped(submission, [other, other], given="layers used in another order")
    overlapped(submission, [CHAIN, other, CHAIN], given="layers used in another order on rank 1")


@pytest.mark.points(2)
def test_unused(submission):
    """overlap: a layer that a rank does not use, and its bucket starts all the same"""
    overlapped(submission, [(0, 1, 3, 4), CHAIN], given="layer 2 not used on rank 0")
    overlapped(submission, [(0, 1, 2), (0, 1, 2)], given="layers 3 and 4 not used")


@pytest.mark.points(2)
def test_steps(submission):
    """overlap: three steps, which end like those of one process"""
    overlapped(submission, [CHAIN, (0, 1, 2, 4)], steps=3, given="three steps")


@pytest.mark.points(1)
def test_group(submission):
    """all: among ranks 1, 2 and 4 of five, given as `group`"""
    one_bucket_checked(submission, 5, group=(1, 2, 4))
    overlapped(submission, [CHAIN] * 3, world=5, group=(1, 2, 4))
