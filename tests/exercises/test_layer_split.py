"""The tests of the exercise `layer_split`: whose layers, what goes forward, what comes back, and what is left.

All numbers are float64. Whatever a rank sends, returns or holds is held against the undivided model, which knows each
tensor by name: so a message can say what a wrong tensor is. A stage's inputs are nan until something is received.
"""

from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn

from dtcourse import per_rank
from dtcourse.grading.findings import Finding, explained_by, fail_on, number_of
from dtcourse.grading.letters import Known, letters
from dtcourse.grading.messages import never_waited, own_messages, sent_bytes
from dtcourse.grading.mixtures import difference
from dtcourse.grading.partition import drawn, not_a_partition, span
from dtcourse.grading.reading import last_step

CUTS = ([2, 3], [5], [2, 1, 2], [1, 3, 1], [1, 1, 1, 2])


# -- the undivided model -----------------------------------------------------------------------------------------------


class Turned(nn.Module):
    """Swaps samples and features: what it returns is not contiguous."""

    def forward(self, x):
        return x.T


def new_layers(turned=False):
    """Five layers, the same on all ranks; the outputs of a linear one have a size of their own."""
    torch.manual_seed(0)
    if turned:
        return [nn.Linear(4, 6).double(), Turned(), nn.Tanh(), Turned(), nn.Linear(6, 4).double()]
    return [nn.Linear(4, 6).double(), nn.Tanh(), nn.Linear(6, 5).double(), nn.Tanh(), nn.Linear(5, 4).double()]


def batch(number, samples):
    generator = torch.Generator().manual_seed(number)
    return [torch.randn(samples, 4, dtype=torch.float64, generator=generator) for _ in range(2)]


def loss_of(outputs, y):
    return nn.functional.mse_loss(outputs, y)


class Undivided:
    """What the whole model computes of each batch, layer by layer.

    between[n][k]       what layer k is given in batch n; between[n][-1] is what the model returns
    slopes[n][k]        the gradient of the loss of batch n by that
    gradients[n]        the gradient of the loss of batch n by each parameter, by name
    losses[n]           the loss of batch n
    """

    def __init__(self, samples, turned=False):
        self.between, self.slopes, self.gradients, self.losses = [], [], [], []
        for number, count in enumerate(samples):
            layers, (x, y) = nn.Sequential(*new_layers(turned)), batch(number, count)
            tensors = [x.requires_grad_()]
            for layer in layers:
                tensors.append(layer(tensors[-1]))
            slopes = torch.autograd.grad(loss := loss_of(tensors[-1], y), tensors, retain_graph=True)
            loss.backward(retain_graph=True)
            self.between.append(tensors)
            self.slopes.append(slopes)
            self.losses.append(loss.detach())
            self.gradients.append({name: p.grad for name, p in layers.named_parameters()})
        self.parameters = {name: p.detach() for name, p in layers.named_parameters()}

    def known(self, first, stop):
        """All tensors by name, as somebody who has the layers first to stop-1 calls them; the nearest come first."""
        for n, tensors in enumerate(self.between):
            of = f" of batch {n}" if len(self.between) > 1 else ""
            names = {stop: "its outputs", first: "its inputs"}
            names |= {k: f"the outputs of layer {k - 1}" for k in range(1, len(tensors)) if k not in names}
            yield from ((f"{name}{of}", tensors[k].detach()) for k, name in names.items())
            yield from ((f"the gradient of {name}{of}", self.slopes[n][k]) for k, name in names.items())
            if first and first < stop:
                alone = torch.autograd.grad(tensors[stop].sum(), tensors[first], retain_graph=True)[0]
                yield f"the gradient of its outputs' sum by its inputs{of}, which knows no loss", alone
            yield f"the loss{of}", self.losses[n]
        yield from ((f"the parameter {name}", value) for name, value in self.parameters.items())
        for n, gradients in enumerate(self.gradients):
            yield from ((f"the gradient of {name} of batch {n}", value) for name, value in gradients.items())


def ends(sizes, rank):
    """The layers first to stop-1 are those of this rank."""
    return sum(sizes[:rank]), sum(sizes[: rank + 1])


def given(sizes, samples):
    """What the ranks are given, in words."""
    many = "samples, in batches" if len(samples) > 1 else number_of(sum(samples), "sample").split()[1]
    return f"{' + '.join(map(str, sizes))} layers, {' + '.join(map(str, samples))} {many}"


# -- what the ranks do -------------------------------------------------------------------------------------------------


def which(own_layers, sizes, rank):
    """The numbers of the layers that own_layers gives to this rank; -1 for what is none of them."""
    layers = new_layers()
    stage = own_layers(layers, sizes, rank)
    if not isinstance(stage, nn.Sequential):
        return repr(type(stage).__name__)
    return [next((k for k, layer in enumerate(layers) if layer is own), -1) for own in stage]


def stage_and_inputs(sizes, samples, turned, group=None):
    """The rank's stage, and for each batch its inputs, still empty, and what the loss is computed with."""
    rank, layers = dist.get_rank(group), new_layers(turned)
    first, stop = ends(sizes, rank)
    inputs = []
    for number, count in enumerate(samples):
        x, y = batch(number, count)
        shape = nn.Sequential(*layers[:first])(x).shape
        inputs.append((x if rank == 0 else torch.full(shape, torch.nan, dtype=torch.float64), y))
    return nn.Sequential(*layers[first:stop]), inputs


def forward_only(stage_forward, sizes, samples, turned=False, **group):
    """Each rank calls your stage_forward, with its stage and its inputs, which are nan until you receive into them."""
    stage, inputs = stage_and_inputs(sizes, samples, turned, **group)
    return [seen_of(stage_forward(stage, x, **group), x) for x, _ in inputs]


def seen_of(outputs, inputs):
    """Outputs and inputs, whether the inputs ask for a gradient, and whether the outputs would give them one."""
    if not isinstance(outputs, torch.Tensor):
        return outputs, None, False, False
    asks, reached = inputs.requires_grad, outputs.requires_grad
    if asks and reached:
        reached = torch.autograd.grad(outputs.sum(), inputs, allow_unused=True)[0] is not None
    return outputs.detach(), inputs.detach(), asks, reached


def backward_only(stage_backward, sizes, samples, turned=False, **group):
    """A given forward pass has been made without a message: each rank has the inputs and outputs of its stage, and the
    last one the loss. Then each calls your stage_backward."""
    rank, layers, (x, y) = dist.get_rank(**group), new_layers(turned), batch(0, samples[0])
    first, stop = ends(sizes, rank)
    inputs = nn.Sequential(*layers[:first])(x).detach().contiguous().requires_grad_(rank > 0)
    stage = nn.Sequential(*layers[first:stop])
    outputs = stage(inputs)
    stage_backward(inputs, outputs, loss_of(outputs, y) if stop == len(layers) else None, **group)
    return [parameter.grad for parameter in stage.parameters()]


def both(functions, sizes, samples, turned=False, together=False, **group):
    """Each rank calls your stage_forward and your stage_backward, for each batch."""
    forward, backward = functions
    stage, inputs = stage_and_inputs(sizes, samples, turned, **group)
    under_way = []
    for x, y in inputs:
        outputs = forward(stage, x, **group)
        is_last = dist.get_rank(**group) == len(sizes) - 1
        under_way.append((x, outputs, loss_of(outputs, y) if is_last else None))
        if not together:
            backward(*under_way.pop(), **group)
    for one in under_way:
        backward(*one, **group)
    return [parameter.grad for parameter in stage.parameters()]


# -- what is expected --------------------------------------------------------------------------------------------------


def travels(run, whole, sizes, forward=False, backward=False, ranks=None):
    """Each stage sends its outputs to the next one, the gradient of its inputs to the one before, and nothing else."""
    yield from own_messages(run)
    yield from never_waited(run) if run.failure is None else ()
    ranks = ranks or (*range(len(sizes)),)
    for stage, rank in enumerate(ranks):
        first, stop = ends(sizes, stage)
        known, expected = dict(whole.known(first, stop)), {}
        if forward and stage < len(sizes) - 1:
            expected[ranks[stage + 1]] = [Known(n, known[n], known) for n in known if n.startswith("its outputs")]
        if backward and stage > 0:
            gradients = [n for n in known if n.startswith("the gradient of its inputs")]
            expected[ranks[stage - 1]] = [Known(n, known[n], known) for n in gradients]
        yield from not_taken(run, rank, expected)
        passes = " and ".join(["forward"] * forward + ["backward"] * backward)
        who = f"stage {stage} of {len(sizes)} in the {passes} pass"
        sources = {*ranks[max(stage - 1, 0) : stage] * forward, *ranks[stage + 1 : stage + 2] * backward}
        for e in run.receives(rank):
            if e.peer not in sources:
                yield Finding(f"rank {rank} receives from rank {e.peer}; {who} does not", e.step, rank, e.line)
        yield from letters(run, rank, expected, who)


def not_taken(run, rank, expected):
    """After a deadlock: what a rank rightly sends has a receiver that has returned."""
    for e in run.messages(rank):
        if e.pending and e.peer in run.returned and e.peer in expected:
            said = f"rank {e.peer} returned and has never received what rank {rank} sends it"
            yield Finding(said, e.step, rank, e.line)


def outputs_are_there(run, whole, sizes):
    """What stage_forward returns on each rank, and what it leaves in the inputs."""
    for rank, results in enumerate(run.results):
        first, stop = ends(sizes, rank)
        known = dict(whole.known(first, stop))
        for outputs, inputs, asks, reached in results:
            for problem in wrong_outputs(rank, known, outputs, inputs, asks, reached):
                yield Finding(problem, last_step(run), rank)


def wrong_outputs(rank, known, outputs, inputs, asks, reached):
    if not isinstance(outputs, torch.Tensor):
        yield f"rank {rank} returned {outputs!r}: return the outputs, on every stage"
        return
    if wrong := Known("its inputs", known["its inputs"], known).wrong(inputs):
        yield f"rank {rank} holds in its inputs {wrong[0]}; expected {wrong[1]}. Receive into the given tensor itself"
    if wrong := Known("its outputs", known["its outputs"], known).wrong(outputs):
        yield f"rank {rank} returned {wrong[0]}; expected {wrong[1]}"
    if rank > 0 and not asks:
        said = f"the inputs of rank {rank} ask for no gradient, so it will have none to send back"
        yield f"{said}: inputs.requires_grad_()"
    elif not reached:
        what = "its inputs" if rank > 0 else "its parameters"
        yield f"no gradient can come from what rank {rank} returned to {what}: return what stage(inputs) returned"


def parameters_have(run, whole, sizes, ranks=None):
    """Each parameter ends with the sum of its gradients over the batches."""
    for stage, rank in enumerate(ranks or range(len(sizes))):
        first, stop = ends(sizes, stage)
        names = [name for name in whole.parameters if first <= int(name.split(".")[0]) < stop]
        for name, seen in zip(names, run.results[rank], strict=True):
            parts = {f"g[{n}]": gradients[name] for n, gradients in enumerate(whole.gradients)}
            wanted = " + ".join(parts)
            if seen is None:
                yield Finding(f"rank {rank} ends with None as gradient of {name}; it has to be {wanted}", 0, rank)
            elif found := difference(seen, dict.fromkeys(parts, 1), parts):
                told = f"rank {rank} ends with {found.seen} as gradient of {name}; it has to be {wanted}"
                told = f"{told} (g[n]: that of batch n in the undivided model)"
                yield Finding(told, last_step(run), rank, drawing=found.drawing)


def boundary_bytes(sizes, samples):
    """For each rank, the bytes that it sends in all, and how they come about: activations onward, gradients back."""
    features = [4, 6, 6, 5, 5, 4]
    cuts = [features[sum(sizes[:stage])] for stage in range(1, len(sizes))]
    sent = [cuts[max(stage - 1, 0) : stage + 1] for stage in range(len(sizes))]  # across the cuts beside each stage
    formulas = [f"8 x {sum(samples)} samples x {sum(widths)} features" for widths in sent]
    return [8 * sum(samples) * sum(widths) for widths in sent], formulas


# -- the tests ---------------------------------------------------------------------------------------------------------


@pytest.mark.points(1)
def test_own_layers(submission):
    """own_layers: each layer belongs to one stage, in their order, as the sizes say"""
    for sizes in CUTS:
        world, cut = len(sizes), f"sizes {sizes}"
        run = submission.run("own_layers", sizes, per_rank(range(world)), world=world, around=which, given=cut)
        fail_on(run, cut_right(run, sizes), cut)


def cut_right(run, sizes):
    for rank, own in enumerate(run.results):
        if isinstance(own, str):
            yield Finding(f"rank {rank} returned {own}: return nn.Sequential(*its_layers)")
            return
        if -1 in own:
            yield Finding(f"rank {rank} has a layer that is none of the given ones: return the layers, and no copies")
            return
    picture = drawn(run.results, sum(sizes))
    for problem in not_a_partition(run.results, sum(sizes), "layer"):
        yield Finding(problem, drawing=picture)
        return
    for rank, own in enumerate(run.results):
        first, stop = ends(sizes, rank)
        if own != list(range(first, stop)):
            its = f"rank {rank} has layers {', '.join(map(str, own)) or 'none'}"
            yield Finding(f"{its}; it takes {sizes[rank]}: {span(first, sizes[rank])}, in this order", drawing=picture)


@pytest.mark.points(3)
def test_forward_messages(submission):
    """stage_forward: the outputs go to the next stage, and nothing else goes anywhere"""
    for sizes in CUTS:
        whole, said = Undivided([3]), given(sizes, [3])
        expected = partial(travels, whole=whole, sizes=sizes, forward=True)
        with explained_by(expected, said):
            run = submission.run("stage_forward", sizes, [3], world=len(sizes), around=forward_only, given=said)
        fail_on(run, expected(run), said)


@pytest.mark.points(2)
def test_forward_outputs(submission):
    """stage_forward: each stage returns its outputs, and its inputs are there and ask for their gradient"""
    for sizes in CUTS:
        said = given(sizes, [3])
        run = submission.run("stage_forward", sizes, [3], world=len(sizes), around=forward_only, given=said)
        fail_on(run, outputs_are_there(run, Undivided([3]), sizes), said)


@pytest.mark.points(3)
def test_backward_messages(submission):
    """stage_backward: the gradient of the inputs goes to the stage before, and nothing else goes anywhere"""
    for sizes in CUTS:
        whole, said = Undivided([3]), given(sizes, [3])
        expected = partial(travels, whole=whole, sizes=sizes, backward=True)
        with explained_by(expected, said):
            run = submission.run("stage_backward", sizes, [3], world=len(sizes), around=backward_only, given=said)
        fail_on(run, expected(run), said)


@pytest.mark.points(2)
def test_backward_gradients(submission):
    """stage_backward: each parameter gets the gradient that it has in the undivided model"""
    for sizes in CUTS:
        said = given(sizes, [3])
        run = submission.run("stage_backward", sizes, [3], world=len(sizes), around=backward_only, given=said)
        fail_on(run, parameters_have(run, Undivided([3]), sizes), said)


@pytest.mark.points(3)
def test_batches(submission):
    """both: three batches, one after the other, as in the undivided model; so many bytes across each cut"""
    samples = [3, 1, 4]
    for sizes in CUTS:
        whole, said = Undivided(samples), given(sizes, samples)
        expected = partial(travels, whole=whole, sizes=sizes, forward=True, backward=True)
        with explained_by(expected, said):
            run = submission.run(
                ("stage_forward", "stage_backward"), sizes, samples, world=len(sizes), around=both, given=said
            )
        fail_on(run, expected(run), said)
        fail_on(run, parameters_have(run, whole, sizes), said)
        fail_on(run, sent_bytes(run, *boundary_bytes(sizes, samples), "the cut"), said)


@pytest.mark.points(2)
def test_two_under_way(submission):
    """both: two batches go forward before the first comes back"""
    for sizes in CUTS:
        whole, said = Undivided([3, 3]), f"{given(sizes, [3, 3])} that are under way at once"
        around = partial(both, together=True)
        run = submission.run(
            ("stage_forward", "stage_backward"), sizes, [3, 3], world=len(sizes), around=around, given=said
        )
        findings = [*travels(run, whole, sizes, forward=True, backward=True), *parameters_have(run, whole, sizes)]
        advice = "Each batch goes back from the inputs and outputs that are given with it"
        fail_on(run, [replace(one, message=f"{one.message}. {advice}") for one in findings], said)


@pytest.mark.points(1)
def test_turned(submission):
    """both: a layer whose outputs are not contiguous, on gloo, which sends no such tensor"""
    for sizes in ([2, 3], [3, 2]):
        whole, said = Undivided([3], turned=True), f"{given(sizes, [3])}, turned by a layer"
        around = partial(both, turned=True)
        run = submission.run(
            ("stage_forward", "stage_backward"), sizes, [3], world=2, around=around, given=said, backend="gloo"
        )
        fail_on(run, travels(run, whole, sizes, forward=True, backward=True), said)
        fail_on(run, parameters_have(run, whole, sizes), said)


@pytest.mark.points(1)
def test_stages_of_a_group(submission):
    """both: among ranks 1, 2 and 4 of five, given as `group`"""
    ranks, sizes = (1, 2, 4), [2, 1, 2]
    said = given(sizes, [3])
    run = submission.run(("stage_forward", "stage_backward"), sizes, [3], world=5, group=ranks, around=both, given=said)
    fail_on(run, travels(run, Undivided([3]), sizes, forward=True, backward=True, ranks=ranks), said)
    fail_on(run, parameters_have(run, Undivided([3]), sizes, ranks), said)
