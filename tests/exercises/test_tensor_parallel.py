"""The tests of the exercise `tensor_parallel`: the parts, what adds up in which pass, and what all ranks end with.

All numbers are float64. Where ranks add up, the message says which mixture of the ranks' summands a tensor is: y[r] is
what rank r adds to the outputs, dx[r] what it adds to the gradient of x.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from dtcourse import per_rank
from dtcourse.events import COLLECTIVE, NEW_GROUP, SEND, region
from dtcourse.grading.findings import Finding, fail_on, number_of
from dtcourse.grading.mixtures import Mistake, Mixture, difference
from dtcourse.grading.partition import drawn, not_a_partition, other_than_the_rule
from dtcourse.raw import dtype_name

WORLDS = (2, 1, 3, 4)
FEATURES = 6


def hidden_features(world):
    """Numbers of hidden features: one that the ranks divide, and others that they do not."""
    return sorted({2 * world, 2 * world + 1, 3 * world - 1})


def given(hidden):
    """What the ranks are given, in words."""
    return f"{FEATURES} features, {hidden} hidden"


# -- parts -------------------------------------------------------------------------------------------------------------


def numbered(outputs, inputs):
    """A weight whose values tell their place: 100 x output + input; and a bias that tells its output."""
    bias = torch.arange(outputs, dtype=torch.float64)
    return 100 * bias[:, None] + torch.arange(inputs), bias


def part_and_memory(cut, outputs, inputs, rank, world):
    """The part that cut() gives this rank, and how many bytes are in memory for its weight."""
    part = cut(*numbered(outputs, inputs), rank, world)
    if not isinstance(part, tuple) or len(part) != 2 or not all(isinstance(t, torch.Tensor) for t in part):
        return repr(type(part).__name__), None
    return part, part[0].untyped_storage().nbytes()


def parts(run, outputs, inputs, by_outputs):
    """The findings of a run of column_part (by its outputs) or row_part (by its inputs) on all ranks."""
    weight, bias = numbered(outputs, inputs)
    thing, count = ("output", outputs) if by_outputs else ("input", inputs)
    taken = []
    for rank, (part, _) in enumerate(run.results):
        if isinstance(part, str):
            yield Finding(f"rank {rank} returned a {part}: return a tuple, weight and bias", rank=rank)
            return
        own = part[0]
        whole = own.dim() == 2 and own.shape[by_outputs] == weight.shape[by_outputs]
        numbers = [int(n) for n in (own[:, 0] // 100 if by_outputs else own[0] % 100)] if whole else []
        if not whole or not torch.equal(own, weight[numbers] if by_outputs else weight[:, numbers]):
            what = f"rank {rank} returned a weight {tuple(own.shape)}, of {tuple(weight.shape)}"
            yield Finding(f"{what}: it has whole {'rows' if by_outputs else 'columns'}, those of its {thing}s", 0, rank)
            return
        taken.append(numbers)
    if wrong := [*not_a_partition(taken, count, thing), *other_than_the_rule(taken, count, thing)]:
        yield Finding(wrong[0], drawing=drawn(taken, count))
    for rank, (own, memory) in enumerate(run.results):
        if not torch.equal(own[1], bias[taken[rank]] if by_outputs else bias):
            its = "that of its outputs" if by_outputs else "the whole one: it belongs to all outputs"
            yield Finding(f"rank {rank} returned the bias {own[1].tolist()}; it is {its}", 1, rank)
        if memory > own[0].nbytes:
            said = f"{memory} bytes of the weight are kept in memory for the {own[0].nbytes} of rank {rank}"
            yield Finding(f"{said}: a slice is a view, clone it", 2, rank)


# -- both passes -------------------------------------------------------------------------------------------------------


def both_ways(compute, gradient, changed=(), **leaves):
    """The outputs of compute(), and the gradients of the leaves after going back from `gradient`, by name.

    `changed`: names of leaves whose values were changed meanwhile, and "the gradient" if that was.
    """
    leaves = {name: leaf.detach().clone().requires_grad_() for name, leaf in leaves.items()}
    before = {name: leaf.detach().clone() for name, leaf in leaves.items()} | {"the gradient": gradient.clone()}
    with region("forward", way="forward"):
        outputs = compute(**leaves)
    seen = {"outputs": outputs.detach() if isinstance(outputs, torch.Tensor) else repr(outputs)}
    if isinstance(outputs, torch.Tensor) and outputs.requires_grad and outputs.shape == gradient.shape:
        with region("backward", way="backward"):
            outputs.backward(gradient)
        seen |= {f"the gradient of {name}": leaf.grad for name, leaf in leaves.items()}
    after = {name: leaf.detach() for name, leaf in leaves.items()} | {"the gradient": gradient}
    return seen | {"changed": [name for name in before if not torch.equal(before[name], after[name])]}


def random(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def through(function, turned=False, own=True, **group):
    """Each rank calls your function with a tensor, and goes back from a gradient."""
    x, gradient = summand(dist.get_rank(**group), own), cotangent(dist.get_rank(**group), own)
    if turned:
        x, gradient = x.mT.contiguous().mT, gradient.mT.contiguous().mT
    return both_ways(lambda x: function(x, **group), gradient, x=x)


def summand(rank, own):
    """What a rank gives to sum_out (its own), or to copy_in (the same on all)."""
    return random(3, FEATURES, seed=10 + rank * own)


def cotangent(rank, own):
    """What comes back to it: from a sum the same on all ranks, from behind copy_in something of its own."""
    return random(3, FEATURES, seed=20 + rank * (not own))


# -- the undivided MLP -------------------------------------------------------------------------------------------------


@dataclass
class Expected:
    """A tensor of a rank: the mixture `wanted` of `parts`, what likely mistakes give, and what to say to all others."""

    wanted: Mixture
    parts: dict[str, torch.Tensor]
    mistakes: list[Mistake]
    otherwise: str = ""


class Whole:
    """The undivided MLP, its inputs and the gradient of its outputs; and what each rank has of it."""

    def __init__(self, hidden, world):
        torch.manual_seed(hidden)
        up, down = nn.Linear(FEATURES, hidden).double(), nn.Linear(hidden, FEATURES).double()
        self.world, self.x = world, random(2, 3, FEATURES)
        self.up, self.down = ([p.detach() for p in layer.parameters()] for layer in (up, down))
        self.hidden, self.slope = random(2, 3, hidden, seed=1), random(2, 3, hidden, seed=2)  # given to single layers
        self.gradient = random(2, 3, FEATURES, seed=3)

    def up_part(self, rank):
        return [tensor.tensor_split(self.world)[rank] for tensor in self.up]

    def down_part(self, rank):
        return [self.down[0].tensor_split(self.world, dim=1)[rank], self.down[1]]

    def own(self, features, rank):
        """The part of (..., hidden) that is a rank's."""
        return features.tensor_split(self.world, dim=-1)[rank]


def gradients(compute, gradient, **leaves):
    leaves = {name: leaf.detach().clone().requires_grad_() for name, leaf in leaves.items()}
    outputs = compute(**leaves)
    outputs.backward(gradient)
    return {"outputs": outputs.detach()} | {f"the gradient of {name}": leaf.grad for name, leaf in leaves.items()}


def column(column_linear, hidden, world, **group):
    """Each rank calls your column_linear with its part, and goes back from a gradient of its outputs."""
    whole, rank = Whole(hidden, world), dist.get_rank(**group)
    weight, bias = whole.up_part(rank)
    compute = partial(column_linear, **group)
    return both_ways(compute, whole.own(whole.slope, rank).clone(), x=whole.x, weight=weight, bias=bias)


def column_expected(whole):
    seen = []
    for rank in range(whole.world):
        weight, bias = whole.up_part(rank)
        seen.append(gradients(F.linear, whole.own(whole.slope, rank), x=whole.x, weight=weight, bias=bias))
    expected = [with_sums(seen, rank, sums={"the gradient of x": "dx"}) for rank in range(whole.world)]
    for rank, one in enumerate(expected):
        weight, bias = whole.up_part(rank)
        product = F.linear(whole.x, weight)
        parts = {"W x": product, "b": bias.expand_as(product)}
        one["outputs"] = Expected({"W x": 1, "b": 1}, parts, [Mistake({"W x": 1}, "Its own bias is missing")])
    return expected


def row(row_linear, hidden, world, **group):
    """Each rank calls your row_linear with its part, and goes back from the gradient of the outputs."""
    whole, rank = Whole(hidden, world), dist.get_rank(**group)
    weight, bias = whole.down_part(rank)
    compute, x = partial(row_linear, **group), whole.own(whole.hidden, rank)
    return both_ways(compute, whole.gradient.clone(), x=x, weight=weight, bias=bias)


def row_expected(whole):
    seen = []
    for rank in range(whole.world):
        weight, _ = whole.down_part(rank)
        x = whole.own(whole.hidden, rank)
        seen.append(gradients(F.linear, whole.gradient, x=x, weight=weight) | of_the_bias(whole))
    return [with_sums(seen, rank, sums={"outputs": "y"}, bias=whole.down[1]) for rank in range(whole.world)]


def mlp(parallel_mlp, hidden, world, **group):
    """Each rank calls your parallel_mlp with its parts, and goes back from the gradient of the outputs."""
    whole, rank = Whole(hidden, world), dist.get_rank(**group)
    names = ("up weight", "up bias", "down weight", "down bias")
    leaves = dict(zip(names, (*whole.up_part(rank), *whole.down_part(rank)), strict=True))

    def compute(x, **parts):
        up_weight, up_bias, down_weight, down_bias = parts.values()
        return parallel_mlp(x, (up_weight, up_bias), (down_weight, down_bias), **group)

    return both_ways(compute, whole.gradient.clone(), x=whole.x, **leaves)


def mlp_expected(whole):
    seen = []
    for rank in range(whole.world):
        (weight, bias), (down, _) = whole.up_part(rank), whole.down_part(rank)
        leaves = {"x": whole.x, "up weight": weight, "up bias": bias, "down weight": down}

        def compute(x, **parts):
            weight, bias, down = parts.values()
            return F.linear(F.gelu(F.linear(x, weight, bias)), down)

        found = gradients(compute, whole.gradient, **leaves)
        seen.append(found | {"the gradient of down bias": of_the_bias(whole)["the gradient of bias"]})
    sums = {"outputs": "y", "the gradient of x": "dx"}
    expected = [with_sums(seen, rank, sums, bias=whole.down[1]) for rank in range(whole.world)]
    for one in expected:
        one["outputs"].otherwise = "Between the two layers stands F.gelu, and after them nothing"
    return expected


def of_the_bias(whole):
    return {"the gradient of bias": whole.gradient.sum((0, 1))}


def with_sums(seen, rank, sums, bias=None):
    """What is expected of a rank, name by name, if those in `sums` are added up over the ranks, and the others not.

    `seen`: what each rank would have on its own. `bias`: what is in the outputs besides their sum.
    """
    world, expected = len(seen), {}
    for name, own in seen[rank].items():
        if name not in sums:
            expected[name] = Expected({"g": 1}, {"g": own}, own_mistakes(world) if "gradient" in name else [])
            continue
        parts = {f"{sums[name]}[{r}]": one[name] for r, one in enumerate(seen)}
        everybody, alone = dict.fromkeys(parts, 1), {f"{sums[name]}[{rank}]": 1}
        rest = {} if bias is None or name != "outputs" else {"b": 1}
        if rest:
            parts["b"] = bias.expand_as(own)
        expected[name] = Expected(everybody | rest, parts, sum_mistakes(everybody, alone, rest, world))
    return expected


def own_mistakes(world):
    return [
        Mistake({"g": world}, "It has been added up over the ranks, and was whole on each of them already"),
        Mistake({"g": 1 / world}, "Nothing is to be divided: the ranks do not average, they add up"),
        Mistake({"g": 0}, WHOLE_EVERYWHERE),
    ]


def sum_mistakes(everybody, alone, rest, world):
    """`everybody`: the sum over the ranks; `alone`: this rank's own part; `rest`: what comes to the sum once."""
    scaled = lambda mixture, by: {name: amount * by for name, amount in mixture.items()}  # noqa: E731
    once = "Add the bias once, after the sum"
    return [
        Mistake(everybody | scaled(rest, world), f"{once}: in each summand it counts {world} times"),
        Mistake(everybody, f"{once}: it is missing") if rest else Mistake(alone, NOT_ADDED),
        Mistake(alone | rest, NOT_ADDED),
        Mistake(scaled(everybody, 1 / world) | rest, "That is the mean: add up, and divide by nothing"),
        Mistake(scaled(everybody | rest, 1 / world), "That is the mean: add up, and divide by nothing"),
        Mistake(scaled(everybody, world) | rest, "That has been added up twice"),
    ]


WHOLE_EVERYWHERE = "It is the whole one on each rank, also if only one rank adds it in the forward pass"
NOT_ADDED = "That is this rank's summand alone: add up those of all ranks"


# -- what is found -----------------------------------------------------------------------------------------------------


def adds_up(run, name, forward, backward, elements, ranks=None):
    """Each rank calls all_reduce so often in each pass, with so many elements each time, and sends nothing else."""
    for rank in ranks or range(run.world_size):
        went_back = any(name.startswith("the gradient of") for name in run.results[rank])
        for way, times in (("forward", forward), *[("backward", backward)] * went_back):
            seen = [e for e in run.events if e.rank == rank and e.labels.get("way") == way and communicates(e)]
            for e in seen:
                if e.op != "all_reduce":
                    said = f"rank {rank} called {e.op} in the {way} pass of {name}: all it needs is all_reduce"
                    yield Finding(said, 0, rank, line_of(e))
                elif e.bytes != 8 * elements and len(seen) == times:
                    said = f"rank {rank} gave {e.bytes // 8} elements to all_reduce in the {way} pass of {name}"
                    yield Finding(f"{said}; expected {elements}", 1, rank, line_of(e))
            if len(seen) != times:
                called = f"called all_reduce {often(len(seen))}" if seen else "did not call all_reduce"
                line = line_of(seen[times]) if len(seen) > times else None
                yield Finding(
                    f"rank {rank} {called} in the {way} pass of {name}; expected {often(times)}", 0, rank, line
                )


def line_of(e):
    """The reader's line; None where autograd was called from here, and something of torch's did the rest."""
    return None if e.line and Path(e.line.file).name == Path(__file__).name else e.line


def communicates(e):
    return e.kind == SEND or (e.kind == COLLECTIVE and e.op != "barrier" and not e.op.startswith(NEW_GROUP))


def often(times):
    return {0: "never", 1: "once", 2: "twice"}.get(times, f"{times} times")


def holds(run, expected, ranks=None):
    """Each rank has these outputs and gradients, and has changed nothing of what it was given."""
    for place, rank in enumerate(ranks or range(run.world_size)):
        seen = run.results[rank]
        for order, (name, wanted) in enumerate(expected[place].items()):
            if found := wrong(rank, name, seen, wanted):
                said, drawing = found
                yield Finding(said, 2 + order, rank, drawing=drawing)
        for name in seen["changed"]:
            said = f"rank {rank} changed {name} in place, and it is not its own: add up a clone"
            yield Finding(said, 1, rank)


def wrong(rank, name, seen, expected):
    """What is wrong with one tensor of a rank, in words, and a drawing of it."""
    if name not in seen:
        return (
            f"no gradient can come back through what rank {rank} returned: autograd does not know how it was made",
            "",
        )
    tensor, like = seen[name], next(iter(expected.parts.values()))
    has, what = ("returned", "") if name == "outputs" else ("ends with", f" as {name}")
    if not isinstance(tensor, torch.Tensor) or (tensor.shape, tensor.dtype) != (like.shape, like.dtype):
        advice = f". {WHOLE_EVERYWHERE}" if tensor is None and set(expected.wanted) == {"g"} else ""
        return f"rank {rank} {has} {kind(tensor)}{what}; expected {kind(like)}{advice}", ""
    if found := difference(tensor, expected.wanted, expected.parts, expected.mistakes):
        right, advice = " + ".join(expected.wanted), found.advice or expected.otherwise
        if set(expected.wanted) == {"g"}:
            right = "g, the whole one" if "gradient" in name else "what is in x"
        return f"rank {rank} {has} {found.seen}{what}; expected {right}{f'. {advice}' if advice else ''}", found.drawing
    return None


def kind(tensor):
    return f"{dtype_name(tensor.dtype)} {tuple(tensor.shape)}" if isinstance(tensor, torch.Tensor) else str(tensor)


# -- the tests ---------------------------------------------------------------------------------------------------------


@pytest.mark.points(2)
def test_column_part(submission):
    """column_part: each rank has its own outputs, weight and bias"""
    for world in WORLDS:
        for outputs in hidden_features(world):
            cut, arguments = f"{outputs} outputs, 3 inputs", (outputs, 3, per_rank(range(world)), world)
            run = submission.run("column_part", *arguments, world=world, around=part_and_memory, given=cut)
            fail_on(run, parts(run, outputs, 3, by_outputs=True), cut)


@pytest.mark.points(2)
def test_row_part(submission):
    """row_part: each rank has its own inputs, and the whole bias"""
    for world in WORLDS:
        for inputs in hidden_features(world):
            cut, arguments = f"3 outputs, {inputs} inputs", (3, inputs, per_rank(range(world)), world)
            run = submission.run("row_part", *arguments, world=world, around=part_and_memory, given=cut)
            fail_on(run, parts(run, 3, inputs, by_outputs=False), cut)


def copied(world):
    """copy_in: x itself; gradients come from what each rank does with it."""
    own = [{"outputs": summand(0, own=False), "the gradient of x": cotangent(r, own=False)} for r in range(world)]
    return [with_sums(own, rank, sums={"the gradient of x": "g"}) for rank in range(world)]


def summed(world):
    """sum_out: the sum; its gradient is the same on all ranks."""
    own = [{"outputs": summand(r, own=True), "the gradient of x": cotangent(r, own=True)} for r in range(world)]
    return [with_sums(own, rank, sums={"outputs": "x"}) for rank in range(world)]


TENSOR = f"tensors of (3, {FEATURES})"


@pytest.mark.points(2)
def test_copy_in(submission):
    """copy_in: x as it is, its gradient added up"""
    for world in WORLDS:
        run = submission.run("copy_in", world=world, around=partial(through, own=False), given=TENSOR)
        fail_on(run, adds_up(run, "copy_in", 0, 1, 3 * FEATURES), TENSOR)
        fail_on(run, holds(run, copied(world)), TENSOR)


@pytest.mark.points(2)
def test_sum_out(submission):
    """sum_out: x added up, its gradient as it is"""
    for world in WORLDS:
        run = submission.run("sum_out", world=world, around=through, given=TENSOR)
        fail_on(run, adds_up(run, "sum_out", 1, 0, 3 * FEATURES), TENSOR)
        fail_on(run, holds(run, summed(world)), TENSOR)


@pytest.mark.points(2)
def test_column_linear(submission):
    """column_linear: this rank's outputs, and the whole gradient of x"""
    for world in WORLDS:
        for hidden in hidden_features(world):
            run = submission.run("column_linear", hidden, world, world=world, around=column, given=given(hidden))
            fail_on(run, adds_up(run, "column_linear", 0, 1, 6 * FEATURES), given(hidden))
            fail_on(run, holds(run, column_expected(Whole(hidden, world))), given(hidden))


@pytest.mark.points(3)
def test_row_linear(submission):
    """row_linear: all outputs, with the bias in them once"""
    for world in WORLDS:
        for hidden in hidden_features(world):
            run = submission.run("row_linear", hidden, world, world=world, around=row, given=given(hidden))
            fail_on(run, adds_up(run, "row_linear", 1, 0, 6 * FEATURES), given(hidden))
            fail_on(run, holds(run, row_expected(Whole(hidden, world))), given(hidden))


@pytest.mark.points(3)
def test_mlp(submission):
    """parallel_mlp: outputs and all gradients of the undivided MLP, with one all-reduce in each pass"""
    for world in WORLDS:
        for hidden in hidden_features(world):
            run = submission.run("parallel_mlp", hidden, world, world=world, around=mlp, given=given(hidden))
            fail_on(run, adds_up(run, "parallel_mlp", 1, 1, 6 * FEATURES), given(hidden))
            fail_on(run, holds(run, mlp_expected(Whole(hidden, world))), given(hidden))


@pytest.mark.points(1)
def test_mlp_of_a_group(submission):
    """parallel_mlp: among ranks 1, 2 and 4 of five, given as `group`"""
    ranks = (1, 2, 4)
    run = submission.run("parallel_mlp", 7, 3, world=5, group=ranks, around=mlp, given=given(7))
    fail_on(run, adds_up(run, "parallel_mlp", 1, 1, 6 * FEATURES, ranks), given(7))
    fail_on(run, holds(run, mlp_expected(Whole(7, 3)), ranks), given(7))


STEPS = 3


def training(functions, world):
    """Two MLPs after one another, each around a shortcut, in three steps of SGD, with the parts that you cut."""
    column_part, row_part, parallel_mlp = functions
    rank, wholes = dist.get_rank(), [Whole(hidden, world) for hidden in (7, 9)]
    parts = [(column_part(*w.up, rank, world), row_part(*w.down, rank, world)) for w in wholes]
    parts = [[[nn.Parameter(t.detach().clone()) for t in part] for part in both] for both in parts]
    for _ in range(STEPS):
        x = wholes[0].x
        for up, down in parts:
            x = x + parallel_mlp(x, tuple(up), tuple(down))
        step(x, [t for both in parts for part in both for t in part])
    return [[[t.detach() for t in part] for part in both] for both in parts]


def step(outputs, parameters):
    outputs.square().mean().backward()
    with torch.no_grad():
        for parameter in parameters:
            parameter -= 0.25 * parameter.grad
            parameter.grad = None


def trained(world):
    """The same on the undivided MLPs; then cut."""
    wholes = [Whole(hidden, world) for hidden in (7, 9)]
    parameters = [[nn.Parameter(t) for t in (*w.up, *w.down)] for w in wholes]
    for _ in range(STEPS):
        x = wholes[0].x
        for up, up_bias, down, down_bias in parameters:
            x = x + F.linear(F.gelu(F.linear(x, up, up_bias)), down, down_bias)
        step(x, [t for four in parameters for t in four])
    for whole, four in zip(wholes, parameters, strict=True):
        tensors = [t.detach() for t in four]
        whole.up, whole.down = tensors[:2], tensors[2:]
    return [[[w.up_part(rank), w.down_part(rank)] for w in wholes] for rank in range(world)]


@pytest.mark.points(2)
def test_training(submission):
    """all: two MLPs with shortcuts, cut and trained, end like the undivided ones"""
    for world in WORLDS:
        said = number_of(STEPS, "step")
        run = submission.run(
            ("column_part", "row_part", "parallel_mlp"), world, world=world, around=training, given=said
        )
        fail_on(run, like_the_undivided(run, trained(world)), said)


def like_the_undivided(run, expected):
    names = [f"{layer} {name}" for layer in ("up", "down") for name in ("weight", "bias")]
    for rank, (seen, wanted) in enumerate(zip(run.results, expected, strict=True)):
        for number, (one, right) in enumerate(zip(seen, wanted, strict=True)):
            tensors = zip(names, (t for part in one for t in part), (t for part in right for t in part), strict=True)
            for name, is_, should in tensors:
                if not torch.allclose(is_, should, rtol=1e-9, atol=1e-9):
                    worst = (is_ - should).abs().max()
                    said = f"rank {rank} ends with a {name} of MLP {number} that is {worst:.2g} off the undivided one"
                    yield Finding(said, 0, rank)


@pytest.mark.points(1)
def test_turned(submission):
    """copy_in, sum_out: tensors that are not contiguous, on gloo, which does not add them up"""
    turned = f"{TENSOR}, not contiguous"
    around = partial(through, own=False, turned=True)
    run = submission.run("copy_in", world=2, around=around, given=turned, backend="gloo")
    fail_on(run, holds(run, copied(2)), turned)
    run = submission.run("sum_out", world=2, around=partial(through, turned=True), given=turned, backend="gloo")
    fail_on(run, holds(run, summed(2)), turned)
