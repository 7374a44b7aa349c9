"""The tests of the exercise `pipeline_stage`: shares, what a forward keeps, what a backward frees, and the whole step.

All numbers are float64. The stage that the ranks are given writes down itself which micro-batch went through it when,
and how many activations were alive then. Whatever is sent, kept or returned is held against one process that has the
whole model, and knows each tensor by name.
"""

import weakref
from dataclasses import replace
from functools import cache, partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss

from dtcourse import per_rank
from dtcourse.events import RECV, SEND
from dtcourse.grading.findings import Finding, explained_by, fail_on, number_of
from dtcourse.grading.letters import Known, letters
from dtcourse.grading.messages import never_waited, own_messages
from dtcourse.grading.mixtures import Mistake, difference, text
from dtcourse.grading.reading import last_step
from dtcourse.pipeline import schedules
from dtcourse.pipeline.simulate import in_flight

WIDTHS = [4, 6, 5, 7, 4]  # between the stages
ENOUGH = ([3, 3, 2], 2), ([2, 2, 2, 2, 1], 3), ([2, 2, 2, 2, 2, 2, 2, 2, 1], 4), ([1, 3, 2, 2], 4)
FEW = ([3, 1], 3), ([2, 2, 1], 4), ([4], 4), ([1], 2), ([2, 2, 1], 1), ([3], 1)


# -- one process with the whole model ----------------------------------------------------------------------------------


def new_stages(world):
    """The same on all ranks: stage s makes WIDTHS[s+1] features of WIDTHS[s]."""
    torch.manual_seed(0)
    return [nn.Sequential(nn.Linear(*WIDTHS[s : s + 2]), nn.Tanh()).double() for s in range(world)]


def microbatches(sizes, world):
    """(samples, targets) of each micro-batch."""
    generator = torch.Generator().manual_seed(1)
    widths = WIDTHS[0], WIDTHS[world]
    return [[torch.randn(n, w, dtype=torch.float64, generator=generator) for w in widths] for n in sizes]


def flat(gradients):
    return torch.cat([gradient.flatten() for gradient in gradients])


class Whole:
    """What one process computes of each micro-batch m, alone.

    between[m][s]       what stage s is given; between[m][-1] is what the model returns
    slopes[m][s]        the gradient of the mean loss of m by that
    gradients[m][s]     the gradient of the mean loss of m by the parameters of stage s, in one row
    losses[m]           that loss
    shares[m]           of m in the batch
    """

    def __init__(self, sizes, world):
        self.sizes, self.world, self._known = sizes, world, {}
        self.shares = [size / sum(sizes) for size in sizes]
        self.between, self.slopes, self.gradients, self.losses = [], [], [], []
        stages = new_stages(world)
        for x, y in microbatches(sizes, world):
            tensors = [x.requires_grad_()]
            for stage in stages:
                tensors.append(stage(tensors[-1]))
            loss = mse_loss(tensors[-1], y)
            self.slopes.append(torch.autograd.grad(loss, tensors, retain_graph=True))
            self.gradients.append(
                [flat(torch.autograd.grad(loss, list(stage.parameters()), retain_graph=True)) for stage in stages]
            )
            self.between.append([tensor.detach() for tensor in tensors])
            self.losses.append(loss.detach())

    def known(self, stage):
        """All tensors by name, as that stage calls them; what is right comes first."""
        ends, modules = {"outputs": stage + 1, "inputs": stage}, new_stages(self.world)
        for m, (share, tensors, slopes) in enumerate(zip(self.shares, self.between, self.slopes, strict=True)):
            yield from ((f"the {end} of micro-batch {m}", tensors[k]) for end, k in ends.items())
            yield from ((f"the gradient of the {end} of micro-batch {m}", share * slopes[k]) for end, k in ends.items())
            yield f"the loss of micro-batch {m} times its share", share * self.losses[m]
        for m, (share, tensors, slopes) in enumerate(zip(self.shares, self.between, self.slopes, strict=True)):
            for told, factor in {"without its share": 1, "with its share in it twice": share**2}.items():
                for end, k in ends.items():
                    yield f"the gradient of the {end} of micro-batch {m}, {told}", factor * slopes[k]
                yield f"the loss of micro-batch {m}, {told}", factor * self.losses[m]
            yield f"the outputs of micro-batch {m}, times its share", share * tensors[stage + 1]
            x = tensors[stage].clone().requires_grad_()
            alone = torch.autograd.grad(modules[stage](x).sum(), x)[0]
            yield f"the gradient of the sum of the outputs by the inputs of micro-batch {m}, which knows no loss", alone

    def named(self, stage):
        """What finds a tensor of that stage by its name, as something that is asked for."""
        if stage not in self._known:
            self._known[stage] = dict(self.known(stage))
        known = self._known[stage]
        return lambda name: Known(name, known[name], known)


@cache
def whole_of(sizes, world):
    return Whole(sizes, world)


def given(sizes):
    """What the ranks are given, in words."""
    many = f"{len(sizes)} micro-batches" if len(sizes) > 1 else "1 micro-batch"
    return f"{many} of {' + '.join(map(str, sizes))} {number_of(sum(sizes), 'sample').split()[1]}"


# -- what the ranks do -------------------------------------------------------------------------------------------------


class Activation:
    """Lives as long as somebody holds the graph of a micro-batch on a stage."""

    def __init__(self, m):
        self.m = m


class Watched(nn.Module):
    """A stage that writes down what it does: ("F", m, activations alive) and ("B", m, activations alive).

    known[m]: what it has to be given in micro-batch m; if it is something else, that is micro-batch -1.
    """

    def __init__(self, layers, known, number):
        super().__init__()
        self.layers, self.known, self.number, self.log, self.alive = layers, known, number, [], weakref.WeakSet()

    def forward(self, x):
        if x.isnan().any():
            raise ValueError(
                f"stage {self.number} is given inputs in which nothing is yet: receive into them, and wait for it"
            )
        which = (m for m, other in enumerate(self.known) if x.shape == other.shape and torch.allclose(x, other))
        activation = Activation(next(which, -1))
        if self.number and not x.requires_grad:
            what = f"stage {self.number} is given inputs of micro-batch {activation.m} that ask for no gradient"
            raise ValueError(f"{what}, and stage {self.number - 1} waits for it: requires_grad_()")
        self.alive.add(activation)
        self.log.append(("F", activation.m, len(self.alive)))
        outputs = self.layers(x)
        if outputs.requires_grad:
            outputs.register_hook(partial(self.goes_back, activation, x.detach()))
        return outputs

    def goes_back(self, activation, x, gradient):
        self.log.append(("B", activation.m, len(self.alive)))
        if activation.m >= 0 and not torch.allclose(x, self.known[activation.m]):
            what = f"the inputs of micro-batch {activation.m} on stage {self.number} have changed since its forward"
            raise ValueError(f"{what}: inputs(m) is a new tensor each time, so receive into that one")


def watched(sizes, world, stage):
    """A stage of the model, and the micro-batches as it is to be given them."""
    stages, batch = new_stages(world), microbatches(sizes, world)
    with torch.no_grad():
        known = [nn.Sequential(*stages[:stage])(x) for x, _ in batch]
    return Watched(stages[stage], known, stage), [x.clone() for x in known], [y for _, y in batch]


def forwards(forward, sizes, world, stage, order):
    """One stage alone: your forward is called for one micro-batch after another, with the same `kept`."""
    own, inputs, targets = watched(sizes, world, stage)
    loss = (lambda outputs, m: mse_loss(outputs, targets[m])) if stage == world - 1 else None
    kept, seen = {}, []
    for m in order:
        inputs[m].requires_grad_(stage > 0)
        returned = forward(own, m, inputs[m], kept, loss, sizes[m] / sum(sizes))
        there = [one for one in range(len(sizes)) if one in kept]
        seen.append((m, plain(returned), isinstance(returned, torch.Tensor) and returned.requires_grad, there))
    return seen, [(m, *pair_of(kept.get(m), inputs[m], own)) for m in order]


def plain(value):
    """A tensor without its graph; of anything else, the name of its type."""
    return value.detach().clone() if isinstance(value, torch.Tensor) else type(value).__name__


def pair_of(pair, inputs, own):
    """Of what is kept: inputs, outputs, and whether the outputs lead back to the parameters, and to the inputs."""
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        return plain(pair), None, False, False
    x, outputs = pair
    if not isinstance(outputs, torch.Tensor) or not outputs.requires_grad:
        return plain(x), plain(outputs), False, False
    leads = torch.autograd.grad(outputs.sum(), next(own.parameters()), retain_graph=True, allow_unused=True)[0]
    back = not inputs.requires_grad or (isinstance(x, torch.Tensor) and x.requires_grad)
    if back and inputs.requires_grad:
        back = torch.autograd.grad(outputs.sum(), x, retain_graph=True, allow_unused=True)[0] is not None
    return plain(x), plain(outputs), leads is not None, back


def backwards(backward, sizes, world, stage, order, slopes):
    """One stage alone: the forwards are done, and your backward is called for one micro-batch after another."""
    own, inputs, targets = watched(sizes, world, stage)
    kept, seen = {}, []
    for m, x in enumerate(inputs):
        outputs = own(x.requires_grad_(stage > 0))
        if stage == world - 1:
            outputs = sizes[m] / sum(sizes) * mse_loss(outputs, targets[m])
        kept[m] = x, outputs
        del outputs, x
    del inputs
    for m in order:
        if m not in kept:
            break
        gradient = None if stage == world - 1 else slopes[m].clone()
        returned = backward(m, gradient, kept)
        there = [one for one in range(len(sizes)) if one in kept]
        seen.append((m, plain(returned), there, sorted(one.m for one in own.alive), gradient_of(own)))
    return seen


def one_step(step, actions, sizes):
    """Each rank calls your step, with its stage, its list of actions, and inputs that are nan until received into."""
    rank, world = dist.get_rank(), dist.get_world_size()
    own, known, targets = watched(sizes, world, rank)
    samples = [x for x, _ in microbatches(sizes, world)]
    for parameter in own.parameters():
        parameter.grad = torch.ones_like(parameter)

    def inputs(m):
        if not 0 <= m < len(sizes):
            raise IndexError(f"inputs({m}) on stage {rank}: the micro-batches are 0 to M-1 = {len(sizes) - 1}")
        return samples[m] if rank == 0 else torch.full_like(known[m], torch.nan)

    def loss(outputs, m):
        return mse_loss(outputs, targets[m])

    try:
        step(own, actions, inputs, sizes, loss if rank == world - 1 else None)
    except KeyError as problem:
        done = " ".join(f"{kind}{m}" for kind, m, _ in own.log) or "nothing"
        said = f"nothing is kept under {problem}; stage {rank} has done {done} until then"
        raise LookupError(said).with_traceback(problem.__traceback__) from None
    return own.log, len(own.alive), gradient_of(own)


def gradient_of(own):
    """Those of all parameters in one row; None if one has none."""
    gradients = [parameter.grad for parameter in own.parameters()]
    return None if any(gradient is None for gradient in gradients) else flat(gradients)


def lists(schedule, world, count):
    """For each rank its actions, as plain pairs."""
    return [[(str(kind), m) for kind, m, _ in actions] for actions in schedule(world, count).ranks]


# -- what is expected of the functions alone ---------------------------------------------------------------------------


def shares_right(run, sizes):
    seen, wanted = run.results[0], [size / sum(sizes) for size in sizes]
    if not isinstance(seen, (list, tuple)) or len(seen) != len(sizes):
        yield Finding(f"it returned {seen}; expected a list of {number_of(len(sizes), 'share')}")
        return
    for m, (share, right) in enumerate(zip(seen, wanted, strict=True)):
        if not isinstance(share, (int, float)) or abs(share - right) > 1e-9:
            total = f"{sizes[m]} of {number_of(sum(sizes), 'sample')}"
            yield Finding(f"the share of micro-batch {m} is {share}; expected {right:.6g}: it has {total}")


def forward_right(run, whole, stage):
    """Each forward returns its outputs, cut off, and leaves inputs and outputs, with their graph, in `kept`."""
    named, is_last = whole.named(stage), stage == whole.world - 1
    seen, pairs = run.results[0]
    before = []
    for m, returned, on_graph, there in seen:
        after = f"after the forward of micro-batch {m}"
        outputs = outputs_of(named, m, is_last)
        if m not in there:
            yield Finding(f"{after} there is no kept[{m}]: its backward will need the pair (inputs, outputs)")
        if gone := [other for other in before if other not in there]:
            yield Finding(f"{after} kept[{gone[0]}] is gone: the backward of micro-batch {gone[0]} is still to come")
        before.append(m)
        if isinstance(returned, str):
            yield Finding(f"the forward of micro-batch {m} returned {returned}: return the outputs, on every stage")
        elif wrong := outputs.wrong(returned):
            yield Finding(f"the forward of micro-batch {m} returned {wrong[0]}; expected {wrong[1]}")
        elif on_graph:
            said = f"what the forward of micro-batch {m} returned is still part of the graph"
            yield Finding(f"{said}, and whoever holds it holds the activation: return outputs.detach()")
    for m, inputs, kept, to_parameters, to_inputs in pairs:
        wanted = named(f"the inputs of micro-batch {m}"), outputs_of(named, m, is_last)
        yield from pair_right(m, (inputs, kept), wanted, to_parameters, to_inputs)


def outputs_of(named, m, is_last):
    return named(f"the loss of micro-batch {m} times its share" if is_last else f"the outputs of micro-batch {m}")


def pair_right(m, pair, wanted, to_parameters, to_inputs):
    if not all(isinstance(one, torch.Tensor) for one in pair):
        yield Finding(f"kept[{m}] is no pair of tensors: keep (inputs, outputs)")
    elif wrong := wanted[0].wrong(pair[0]) or wanted[1].wrong(pair[1]):
        yield Finding(f"there is {wrong[0]} in kept[{m}] = (inputs, outputs); expected {wrong[1]}")
    elif not to_parameters:
        said = f"the outputs in kept[{m}] are cut off from the graph, so micro-batch {m} cannot go back"
        yield Finding(f"{said}: keep them as they are, and cut off what is returned")
    elif not to_inputs:
        said = f"no gradient can come from the outputs to the inputs in kept[{m}]"
        yield Finding(f"{said}, and the stage before waits for it: keep the inputs that went into `stage`")


def backward_right(run, whole, stage):
    """Each backward returns the gradient of its inputs, adds to those of the parameters, and frees its activation."""
    named = whole.named(stage)
    parts, left = {}, set(range(len(whole.sizes)))
    for m, returned, there, alive, gradients in run.results[0]:
        left.remove(m)
        after, gone = f"after the backward of micro-batch {m}", sorted(left - set(there))
        if m in there and gone:
            said = f"the backward of micro-batch {m} has taken kept[{gone[0]}] in place of kept[{m}]"
            yield Finding(f"{said}: each goes back from its own inputs and outputs")
        elif m in there:
            said = f"{after} its inputs and outputs are still in `kept`"
            yield Finding(f"{said}, and so is its activation: take them out, with kept.pop({m})")
        elif gone:
            yield Finding(f"{after} kept[{gone[0]}] is gone: the backward of micro-batch {gone[0]} is still to come")
        if stage:
            wanted = named(f"the gradient of the inputs of micro-batch {m}")
            if isinstance(returned, str):
                yield Finding(f"the backward of micro-batch {m} returned {returned}; expected {wanted.name}")
            elif wrong := wanted.wrong(returned):
                yield Finding(f"the backward of micro-batch {m} returned {wrong[0]}; expected {wrong[1]}")
        parts[f"g[{m}]"] = whole.shares[m] * whole.gradients[m][stage]
        right = " + ".join(parts)
        if gradients is None:
            yield Finding(f"{after} the parameters have no gradient; expected {right} (g[m]: that of micro-batch m)")
        elif found := difference(gradients, dict.fromkeys(parts, 1), parts):
            said = f"{after} the parameters' gradient is {found.seen}; expected {right} (g[m]: that of micro-batch m)"
            yield Finding(said, drawing=found.drawing)
        if set(alive) - left and m not in there:
            yield Finding(f"{after} somebody still holds its activation: nothing but `kept` may")


# -- what is expected of the step --------------------------------------------------------------------------------------


def travels(run, whole, plan):
    """Each stage sends the outputs of each micro-batch on, the gradient of its inputs back, and nothing else."""
    for finding in messages_right(run, whole, plan):
        given_helper = finding.line is not None and finding.line.function == "exchange"
        yield replace(finding, line=None) if given_helper and run.failure is None else finding


def messages_right(run, whole, plan):
    world = whole.world
    if crossing := list(who_wait_for_each_other(run, plan)):
        yield from crossing
        return
    yield from own_messages(run)
    yield from never_waited(run) if run.failure is None else ()
    for stage in range(world):
        named, who, sent, received = whole.named(stage), f"stage {stage} of {world}", {}, {}
        forwards_, backwards_ = (of_kind(kind, plan[stage]) for kind in "FB")
        if stage < world - 1:
            sent[stage + 1] = [named(f"the outputs of micro-batch {m}") for m in forwards_]
            received[stage + 1] = [named(f"the gradient of the outputs of micro-batch {m}") for m in backwards_]
        if stage > 0:
            sent[stage - 1] = [named(f"the gradient of the inputs of micro-batch {m}") for m in backwards_]
            received[stage - 1] = [named(f"the inputs of micro-batch {m}") for m in forwards_]
        yield from received_right(run, stage, received, who)
        yield from letters(run, stage, sent, who)


def received_right(run, stage, expected, who):
    """A stage receives what its neighbours send, each into a tensor that is as large."""
    ends = {0: "the first one has the samples", run.world_size - 1: "the gradient of the last one comes from its loss"}
    why = f": {ends[stage]}" if stage in ends else ""
    coming = {source: iter(meant) for source, meant in expected.items()}
    for e in run.receives(stage):
        if e.peer not in coming:
            yield Finding(f"rank {stage} receives from rank {e.peer}; {who} does not{why}", e.step, stage, e.line)
        elif (meant := next(coming[e.peer], None)) is None:
            count = number_of(len(expected[e.peer]), "message")
            said = f"rank {stage} receives from rank {e.peer} once more; {who} receives {count} from there{why}"
            yield Finding(said, e.step, stage, e.line)
        elif e.bytes != 8 * meant.wanted.numel():
            kinds = [f"{kind[0]} {tuple(kind[1])}" for kind in ((e.dtype, e.shape), ("float64", meant.wanted.shape))]
            said = f"rank {stage} receives from rank {e.peer} into {kinds[0]}; what comes there is {meant.name}"
            yield Finding(f"{said}, {kinds[1]}{why if stage else ''}", e.step, stage, e.line)


def of_kind(kind, actions):
    return [m for one, m in actions if one == kind]


def who_wait_for_each_other(run, plan):
    """After a deadlock: two neighbours that both send, or both receive, and each waits for the other."""
    waits = [e for e in run.events if e.pending and e.kind in (SEND, RECV)] if run.waits else []
    for kind, does in ((SEND, "sends"), (RECV, "receives")):
        here = {(e.rank, e.peer): e for e in waits if e.kind == kind}
        other = {(e.rank, e.peer) for e in waits if e.kind != kind}
        for (rank, peer), e in here.items():
            if rank < peer and (peer, rank) in here and not other & {(rank, peer), (peer, rank)}:
                ways = {SEND: ("to", rank, peer), RECV: ("from", peer, rank)}[kind]
                one = f"rank {rank} {does} {number_in(run, here[rank, peer], plan)} {ways[0]} rank {peer}"
                two = f"rank {peer} {does} {number_in(run, here[peer, rank], plan)} {ways[0]} rank {rank}"
                advice = "Between two actions, what was made goes out and what is needed comes in, in one exchange"
                yield Finding(f"{one}, while {two}: each waits for the other, for ever. {advice}", e.step, rank, e.line)


def number_in(run, e, plan):
    """What a message is that never came to its end, by the list of the rank that sends it."""
    sender, receiver = (e.rank, e.peer) if e.kind == SEND else (e.peer, e.rank)
    kind, what = ("F", "the outputs") if sender < receiver else ("B", "the gradient")
    before = [o for o in run.events if (o.kind, o.rank, o.peer) == (e.kind, e.rank, e.peer) and o.index < e.index]
    numbers = of_kind(kind, plan[sender])
    return f"{what} of micro-batch {numbers[len(before)]}" if len(before) < len(numbers) else what


def as_listed(run, plan):
    """Each rank did what its list says, in this order."""
    for stage, ((log, *_), actions) in enumerate(zip(run.results, plan, strict=True)):
        did, says = [(kind, m) for kind, m, _ in log], list(actions)
        if did != says:
            place = next((n for n, pair in enumerate(zip(did, says, strict=False)) if pair[0] != pair[1]), None)
            short = min(len(did), len(says)) if place is None else place
            seen, wanted = (short_of(each, short) for each in (did, says))
            drawing = "\n".join(
                f"  {name:9} {' '.join(short_of(each, n) for n in range(len(each)))}"
                for name, each in (("it did", did), ("its list", says))
            )
            yield Finding(f"stage {stage} does {seen} where its list says {wanted}", 0, stage, drawing=drawing)


def short_of(actions, place):
    if place >= len(actions):
        return "nothing"
    kind, m = actions[place]
    return f"{kind}{m}" if m >= 0 else f"{kind} of inputs that are no micro-batch's"


def keeps_no_more(run, plan, name, formula):
    """At each forward there are no more activations alive than the list asks for, and none in the end."""
    for stage, ((log, left, _), actions) in enumerate(zip(run.results, plan.ranks, strict=True)):
        for (kind, m, alive), most in zip(log, in_flight(actions), strict=False):
            if kind == "F" and alive > most:
                most = max(in_flight(actions))
                said = f"stage {stage} keeps {number_of(alive, 'activation')} in the forward of micro-batch {m}"
                yield Finding(
                    f"{said}; {name} keeps {formula} = {most} at most. Each backward has to free its own", 0, stage
                )
                break
        if left:
            yield Finding(f"stage {stage} still keeps {number_of(left, 'activation')} when step is over", 1, stage)


def gradient_of_the_batch(run, whole):
    """Each stage ends with what it began with and the mean over the samples of the batch."""
    for stage, (*_, seen) in enumerate(run.results):
        parts = {f"g[{m}]": gradients[stage] for m, gradients in enumerate(whole.gradients)}
        right = {"old": 1.0, **dict(zip(parts, whole.shares, strict=True))}
        if seen is None:
            yield Finding(f"stage {stage} ends without a gradient; it has to be {text(right)}", last_step(run), stage)
            continue
        parts["old"] = torch.ones_like(seen)
        mistakes = list(likely(whole, stage))
        if found := difference(seen, right, parts, mistakes):
            told = f"stage {stage} ends with {found.seen} as its gradient; it has to be {text(right)}"
            told = f"{told} (g[m]: of the mean loss of micro-batch m; old: what was there before)"
            told = f"{told}. {found.advice}" if found.advice else told
            yield Finding(told, last_step(run), stage, drawing=found.drawing)


def likely(whole, stage):
    """What a stage ends with by the usual mistakes."""
    shares, count = {f"g[{m}]": share for m, share in enumerate(whole.shares)}, len(whole.shares)

    def mixed(amount, old=1.0):
        return {"old": old, **{name: amount(share) for name, share in shares.items()}}

    yield Mistake(
        mixed(lambda s: 1), "These are summed up and not averaged: the loss of a micro-batch counts by its share"
    )
    yield Mistake(
        mixed(lambda s: 1 / count), "A smaller micro-batch counts by its samples, and not as much as the others"
    )
    yield Mistake(mixed(lambda s: s * s), "The share is in it twice")
    times = whole.world - stage
    yield Mistake(mixed(lambda s: s**times), f"The share is in it {times} times: only the last stage multiplies by it")
    yield Mistake(mixed(lambda s: s, old=0), "step adds to what is there: whoever calls it zeroes the gradients")
    last = {f"g[{count - 1}]": whole.shares[-1]}
    yield Mistake(last, "Nothing is zeroed between two micro-batches: their gradients add up")


def all_of_it(run, sizes, plan, schedule, name, formula):
    """All that is asked of a step, one thing after the other."""
    whole = whole_of((*sizes,), run.world_size)
    yield travels(run, whole, plan)
    yield as_listed(run, plan)
    yield gradient_of_the_batch(run, whole)
    yield keeps_no_more(run, schedule(run.world_size, len(sizes)), name, formula)


# -- the tests ---------------------------------------------------------------------------------------------------------


@pytest.mark.points(1)
def test_shares(submission):
    """shares: each micro-batch counts by its samples"""
    for sizes in ([2, 2], [3, 3, 2], [1, 4, 2, 2], [5]):
        run = submission.run("shares", sizes, world=1, given=f"sizes {sizes}")
        fail_on(run, shares_right(run, sizes), f"sizes {sizes}")


@pytest.mark.points(2)
def test_forward(submission):
    """forward: returns the outputs, cut off, and keeps inputs and outputs for the backward"""
    for sizes, stage in (([2, 2, 2], 1), ([2, 3, 1], 0)):
        whole, said = whole_of((*sizes,), 3), f"{given(sizes)}, stage {stage} of 3"
        run = submission.run("forward", sizes, 3, stage, [0, 2, 1], world=1, around=forwards, given=said)
        fail_on(run, forward_right(run, whole, stage), said)


@pytest.mark.points(2)
def test_forward_to_the_loss(submission):
    """forward: on the last stage the outputs are the loss, times the share"""
    for sizes, world in (([2, 2, 2], 3), ([2, 3, 1], 1)):
        whole, said = whole_of((*sizes,), world), f"{given(sizes)}, stage {world - 1} of {world}"
        run = submission.run("forward", sizes, world, world - 1, [0, 1, 2], world=1, around=forwards, given=said)
        fail_on(run, forward_right(run, whole, world - 1), said)


@pytest.mark.points(3)
def test_backward(submission):
    """backward: returns the gradient of the inputs, adds to those of the parameters, and frees the activation"""
    for sizes, stage in (([2, 2, 2], 1), ([2, 3, 1], 0), ([2, 3, 1], 2)):
        whole, said = whole_of((*sizes,), 3), f"{given(sizes)}, stage {stage} of 3"
        slopes = [share * slope[stage + 1] for share, slope in zip(whole.shares, whole.slopes, strict=True)]
        run = submission.run("backward", sizes, 3, stage, [0, 2, 1], slopes, world=1, around=backwards, given=said)
        fail_on(run, backward_right(run, whole, stage), said)


@pytest.mark.points(3)
def test_step_messages(submission):
    """step: outputs go to the stage after, gradients to the one before, and nobody waits for ever"""
    for sizes, world in ENOUGH:
        whole, said, plan = whole_of((*sizes,), world), given(sizes), lists(schedules.one_f_one_b, world, len(sizes))
        expected = partial(travels, whole=whole, plan=plan)
        with explained_by(expected, said):
            run = submission.run("step", per_rank(plan), sizes, world=world, around=one_step, given=said)
        fail_on(run, expected(run), said)


@pytest.mark.points(3)
def test_step_gradients(submission):
    """step: each stage ends with the gradient of the whole batch"""
    for sizes, world in ENOUGH:
        whole, said, plan = whole_of((*sizes,), world), given(sizes), lists(schedules.one_f_one_b, world, len(sizes))
        with explained_by(partial(travels, whole=whole, plan=plan), said):
            run = submission.run("step", per_rank(plan), sizes, world=world, around=one_step, given=said)
        fail_on(run, as_listed(run, plan), said)
        fail_on(run, gradient_of_the_batch(run, whole), said)


@pytest.mark.points(3)
def test_step_memory(submission):
    """step: in 1F1B, stage s keeps min(P-s, M) activations at most"""
    for sizes, world in ENOUGH:
        whole, said, plan = whole_of((*sizes,), world), given(sizes), lists(schedules.one_f_one_b, world, len(sizes))
        with explained_by(partial(travels, whole=whole, plan=plan), said):
            run = submission.run("step", per_rank(plan), sizes, world=world, around=one_step, given=said)
        fail_on(run, as_listed(run, plan), said)
        fail_on(run, keeps_no_more(run, schedules.one_f_one_b(world, len(sizes)), "1F1B", "min(P-s, M)"), said)


@pytest.mark.points(2)
def test_step_of_few(submission):
    """step: fewer micro-batches than stages, one micro-batch, one stage"""
    for sizes, world in FEW:
        said, plan = given(sizes), lists(schedules.one_f_one_b, world, len(sizes))
        with explained_by(partial(travels, whole=whole_of((*sizes,), world), plan=plan), said):
            run = submission.run("step", per_rank(plan), sizes, world=world, around=one_step, given=said)
        for found in all_of_it(run, sizes, plan, schedules.one_f_one_b, "1F1B", "min(P-s, M)"):
            fail_on(run, found, said)


@pytest.mark.points(1)
def test_step_follows_its_list(submission):
    """step: the same with the lists of GPipe"""
    for sizes, world in (([2, 2, 1], 2), ([2, 2, 2, 1], 3)):
        said, plan = f"{given(sizes)}, GPipe", lists(schedules.gpipe, world, len(sizes))
        with explained_by(partial(travels, whole=whole_of((*sizes,), world), plan=plan), said):
            run = submission.run("step", per_rank(plan), sizes, world=world, around=one_step, given=said)
        for found in all_of_it(run, sizes, plan, schedules.gpipe, "GPipe", "M"):
            fail_on(run, found, said)
