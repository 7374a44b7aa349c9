"""The tests of the exercise `large_batch`: rates asked directly, a step's gradient on real ranks, momentum by steps.

Of a gradient that comes out wrong, the message says which mixture of the micro-batches' gradients it is. Rates and
velocities are held against what likely mistakes give.
"""

import random

import pytest
import torch
from torch import nn

from dtcourse import per_rank
from dtcourse.events import COLLECTIVE, SEND
from dtcourse.grading.findings import Finding, fail_on
from dtcourse.grading.mixtures import Difference, Mistake, difference
from dtcourse.grading.predictions import difference as other_than
from dtcourse.grading.reading import last_step
from dtcourse.grading.serving import answers
from dtcourse.grading.transport import added_on_the_way

WORLDS = (2, 3, 4, 5)
DIRECTLY = "asked directly"


# -- rates -------------------------------------------------------------------------------------------------------------


def number(answer):
    """The number that a function returned; None if it is none."""
    plain = answer.item() if isinstance(answer, torch.Tensor) and answer.numel() == 1 else answer
    return float(plain) if isinstance(plain, (int, float)) else None


def wrong_rate(asked, answer, right, mistakes):
    """What is wrong with a rate, in words; `mistakes`: what to say of it -> the rate of somebody who makes it."""
    seen = number(answer)
    if seen is not None and seen == pytest.approx(right, rel=1e-6):
        return None
    likely = (words for words, rate in mistakes.items() if seen is not None and seen == pytest.approx(rate, rel=1e-6))
    why = next((f": {words}" for words in likely), "")
    return f"{asked} returned {answer!r}, and the rate is {right:g}{why}"


def scaling_mistakes(rate, reference, local, ranks, micro_batches):
    k = local * ranks * micro_batches / reference
    return {
        "a step takes the samples of all micro-batches, not of one": rate * local * ranks / reference,
        "a step takes the samples of all ranks, not of one": rate * local * micro_batches / reference,
        "that counts one micro-batch of one rank, and a step takes those of all": rate * local / reference,
        "the rate does not change with the number of ranks alone, but with the samples of a step": rate * ranks,
        "k times the batch is k times the rate, not the square root of k times": rate * k**0.5,
        "a larger batch has a larger rate, and this is the smaller one": rate / k,
        "that is the rate of the small batch: scale it": rate,
        "that is k, how many times as large the batch is: times the rate": k,
        "so many samples make a step: divided by the reference": rate * local * ranks * micro_batches,
    }


def wrong_scaling(cases, answered):
    for case, (answer, _) in zip(cases, answered, strict=True):
        rate, reference, local, ranks, micro_batches = case
        asked = f"scaled_rate({rate}, {reference}, local={local}, ranks={ranks}, micro_batches={micro_batches})"
        right = rate * local * ranks * micro_batches / reference
        if said := wrong_rate(asked, answer, right, scaling_mistakes(*case)):
            yield Finding(said)


def warm_up_rate(iteration, small, large, iterations):
    return small + (large - small) * min(iteration / iterations, 1) if iterations else large


def warm_up_mistakes(iteration, small, large, iterations):
    step = (large - small) / max(iterations, 1)
    early, late = (warm_up_rate(i, small, large, iterations) for i in (iteration + 1, max(iteration - 1, 0)))
    return {
        f"iteration {iteration} has that of iteration {iteration + 1} already; they count from 0": early,
        f"iteration {iteration} has that of iteration {iteration - 1} still": late,
        f"iteration {iterations} is the first one with the large rate, not iteration {iterations - 1}": (
            small + (large - small) * min(iteration / (iterations - 1), 1) if iterations > 1 else large
        ),
        f"iteration {iterations} is the first one with the large rate, not iteration {iterations + 1}": (
            small + (large - small) * min(iteration / (iterations + 1), 1)
        ),
        f"the warm-up is over after iteration {iterations}, and it goes on": small + step * iteration,
        "it begins with the small rate, not with 0": large * min(iteration / max(iterations, 1), 1),
        "add the same amount each time; this multiplies": (
            small * (large / small) ** min(iteration / max(iterations, 1), 1)
        ),
        "that is the small rate still, which would then jump: add a part at each iteration": small,
        "that is the large rate: the warm-up is missing": large,
        "that has the way from the small rate to the large one, but does not start at the small one": step * iteration,
    }


def wrong_warm_up(cases, answered):
    for case, (answer, _) in zip(cases, answered, strict=True):
        iteration, small, large, iterations = case
        asked = f"warm_up(iteration={iteration}, small={small}, large={large}, iterations={iterations})"
        if said := wrong_rate(asked, answer, warm_up_rate(*case), warm_up_mistakes(*case)):
            yield Finding(said)


@pytest.mark.points(2)
def test_scaled_rate(submission):
    """scaled_rate: the rate grows with the samples of a step"""
    cases = [(0.1, 256, 32, 256, 1), (0.05, 32, 32, 4, 2), (0.4, 256, 16, 2, 1), (0.05, 32, 32, 1, 1)]
    chance = random.Random(0)
    for _ in range(50):
        sizes = chance.choice((8, 32, 256)), chance.choice((4, 16, 48)), chance.randint(1, 64), chance.randint(1, 6)
        cases.append((chance.choice((0.02, 0.3)), *sizes))
    run = submission.run("scaled_rate", cases, world=1, around=answers, given=DIRECTLY)
    fail_on(run, wrong_scaling(cases, run.results[0]), DIRECTLY)


@pytest.mark.points(2)
def test_within_the_warm_up(submission):
    """warm_up: step by step, by the same amount"""
    cases = [(2, 0.1, 0.8, 4), *((i, 0.1, 0.8, 4) for i in range(5)), *((i, 0.05, 3.2, 25) for i in range(1, 26))]
    run = submission.run("warm_up", cases, world=1, around=answers, given=DIRECTLY)
    fail_on(run, wrong_warm_up(cases, run.results[0]), DIRECTLY)


@pytest.mark.points(2)
def test_ends_of_the_warm_up(submission):
    """warm_up: the first iteration, the last one, those after it; a warm-up of one iteration, and of none"""
    cases = [(i, 0.1, 0.8, n) for n in (4, 1) for i in (0, n, n + 1, 99)]
    run = submission.run("warm_up", cases, world=1, around=answers, given=DIRECTLY)
    fail_on(run, wrong_warm_up(cases, run.results[0]), DIRECTLY)
    cases, given = [(i, 0.1, 0.8, 0) for i in (0, 1, 7)], "no warm-up"
    run = submission.run("warm_up", cases, world=1, around=answers, given=given)
    fail_on(run, wrong_warm_up(cases, run.results[0]), given)


# -- a step's gradient -------------------------------------------------------------------------------------------------


def new_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 6)).double()


SIZE = sum(parameter.nbytes for parameter in new_model().parameters())


def losses_of(model, micro):
    x, y = micro
    return (model(x) - y).square().mean(1)


def old_gradient(parameter):
    """What the step before has left in .grad."""
    return torch.linspace(-1, 1, parameter.numel(), dtype=parameter.dtype).view_as(parameter)


def one_step(step_gradients, micro_batches, **group):
    """Each rank calls your step_gradients with its micro-batches; .grad still holds the step before."""
    model = new_model()
    for parameter in model.parameters():
        parameter.grad = old_gradient(parameter)
    step_gradients(model, losses_of, micro_batches, **group)
    return [parameter.grad for parameter in model.parameters()]


def one_vector(gradients):
    return torch.cat([gradient.flatten() for gradient in gradients])


def own_gradient(model, losses_of, micro_batches):
    """The gradient of one micro-batch's mean loss."""
    (micro,) = micro_batches
    model.zero_grad()
    losses_of(model, micro).mean().backward()


def micro_batches_of(sizes):
    """For each rank a micro-batch of each of its `sizes`."""
    draw = torch.Generator().manual_seed(1)
    return [[tuple(torch.randn(n, k, dtype=torch.float64, generator=draw) for k in (8, 6)) for n in s] for s in sizes]


def summed_up(run, sizes, ranks=None):
    """Each of the ranks, which had micro-batches of these sizes, ends with the gradient of all samples together."""
    ranks = ranks or range(len(sizes))
    counts = {f"g[{rank},{m}]": n for rank, own in zip(ranks, sizes, strict=True) for m, n in enumerate(own)}
    micro_batches = [micro for own in micro_batches_of(sizes) for micro in own]
    parts = {g: one_vector(one_step(own_gradient, [micro])) for g, micro in zip(counts, micro_batches, strict=True)}
    own_parts = dict(parts)
    parts["old"] = one_vector([old_gradient(parameter) for parameter in new_model().parameters()])
    total = sum(counts.values())
    formula = " + ".join(f"{n}/{total} {name}" for name, n in counts.items())
    wanted = {name: n / total for name, n in counts.items()}
    for place, rank in enumerate(ranks):
        seen = run.results[rank]
        missing = [name for (name, _), g in zip(new_model().named_parameters(), seen, strict=True) if g is None]
        if missing:
            found = Difference(f"None as gradient of {missing[0]}", "Also this rank's model makes the step")
        else:
            found = difference(one_vector(seen), wanted, parts, mistakes(sizes, place, ranks))
            if found and "old" not in found.seen:  # then it need not be drawn
                found = difference(one_vector(seen), wanted, own_parts, mistakes(sizes, place, ranks))
        if found:
            said = f"rank {rank} ends with {found.seen}; it has to be {formula}"
            said = f"{said}. {found.advice}" if found.advice else said
            yield Finding(said, last_step(run), rank, drawing=found.drawing)


def mistakes(sizes, place, ranks):
    """What likely mistakes leave on the rank at this place."""
    names = [[f"g[{rank},{m}]" for m in range(len(own))] for rank, own in zip(ranks, sizes, strict=True)]
    total, n = sum(map(sum, sizes)), len(ranks)

    def mixed(amount):
        """amount(size, its rank's sizes, micro-batches of its rank that come later)."""
        return {
            name: amount(size, own, len(own) - 1 - m)
            for of_rank, own in zip(names, sizes, strict=True)
            for m, (name, size) in enumerate(zip(of_rank, own, strict=True))
        }

    def alone(mixture):
        return {name: amount for name, amount in mixture.items() if name in names[place]}

    right = mixed(lambda size, own, later: size / total)
    clear = ".grad still holds the step before: clear it first, for backward() adds to what is there"
    by_samples = "A mean of means is not the mean: each sample counts the same, so divide sums by all samples"
    all_samples = f"Divide by the samples of the whole step, which are {total}"
    return [
        Mistake({**right, "old": 1}, clear),
        Mistake({**right, "old": n}, clear),
        Mistake({**right, "old": 1 / n}, clear),
        Mistake({**right, "old": n / total}, clear),
        Mistake({**right, "old": 1 / total}, clear),
        Mistake({"old": 1}, "That is the step before, as it was: change parameter.grad, in place"),
        Mistake(
            mixed(lambda size, own, later: 1),
            f"These are means, added up, or sums that were all-reduced twice. {all_samples}, and add sums, once",
        ),
        Mistake(mixed(lambda size, own, later: size), f"These are sums. {all_samples}"),
        Mistake(mixed(lambda size, own, later: size / n), f"{all_samples}, not by the number of ranks"),
        Mistake(
            mixed(lambda size, own, later: size / sum(own)),
            f"Each rank divides by its own samples, and then all is added up. {all_samples}",
        ),
        Mistake(mixed(lambda size, own, later: size / sum(own) / n), by_samples),
        Mistake(
            mixed(lambda size, own, later: size / max(sum(sizes[place]), 1) / n),
            "Not all ranks have as many samples as this one: add up their numbers, too",
        ),
        Mistake(mixed(lambda size, own, later: 1 / len(own) / n), by_samples),
        Mistake(mixed(lambda size, own, later: sum(own) / len(own) / total), f"{by_samples}, on each rank too"),
        Mistake(mixed(lambda size, own, later: 1 / sum(map(len, sizes))), by_samples),
        Mistake(mixed(lambda size, own, later: 1 / len(own)), f"These are means, added up. {all_samples}"),
        Mistake(
            mixed(lambda size, own, later: 1 / n),
            "Each rank's micro-batches are added up as means, as if it had only one. " + all_samples,
        ),
        Mistake(mixed(lambda size, own, later: size / total / n), "That is divided once too often: by the ranks, too"),
        Mistake(mixed(lambda size, own, later: size / total / len(own)), "Micro-batches are divided by once too often"),
        Mistake(
            mixed(lambda size, own, later: size / total * n**later),
            "What was added up over the ranks is added up again after the next micro-batch: exchange once, at the end",
        ),
        Mistake(
            mixed(lambda size, own, later: size / total if not later else 0),
            "Only the last micro-batch of each rank is there: clear .grad before the first, not before each of them",
        ),
        Mistake(
            mixed(lambda size, own, later: size / sum(s[-1] for s in sizes if s) if not later else 0),
            "Only the last micro-batch of each rank is there: clear .grad before the first, not before each of them",
        ),
        Mistake(alone(right), "That is this rank's own part: add up those of all ranks"),
        Mistake(
            alone(mixed(lambda size, own, later: size / sum(own))),
            "That is the mean over this rank's samples: add up those of all ranks",
        ),
    ]


def given(sizes):
    """ "micro-batches of 4 + 2 | 2 samples": what the ranks are given, a bar between two ranks."""
    return f"micro-batches of {' | '.join(' + '.join(map(str, own)) or 'none' for own in sizes)} samples"


def check_step(submission, sizes):
    __tracebackhide__ = True
    run = submission.run(
        "step_gradients", per_rank(micro_batches_of(sizes)), world=len(sizes), around=one_step, given=given(sizes)
    )
    fail_on(run, summed_up(run, sizes), given(sizes))
    return run


def bytes_sent(run):
    """Of the gradients and what goes with them, by rank."""
    sent = [0] * run.world_size
    for event in run.events:
        if event.kind in (COLLECTIVE, SEND):
            sent[event.rank] += event.bytes
    return sent


@pytest.mark.points(2)
def test_one_micro_batch(submission):
    """step_gradients: one micro-batch a rank, all of the same size"""
    for world in (1, *WORLDS):
        check_step(submission, [[2]] * world)


@pytest.mark.points(3)
def test_unequal_ranks(submission):
    """step_gradients: one micro-batch a rank, of different sizes"""
    for world in WORLDS:
        check_step(submission, [[3], [1], [2], [6], [4]][:world])


@pytest.mark.points(3)
def test_micro_batches(submission):
    """step_gradients: several micro-batches a rank, of different sizes; as many on each, and not"""
    check_step(submission, [[2, 2, 2]])
    check_step(submission, [[2, 1], [3, 2]])
    check_step(submission, [[1, 4], [2, 1], [5, 3]])
    check_step(submission, [[2], [1, 3, 2], [4, 1]])


@pytest.mark.points(2)
def test_no_micro_batch(submission):
    """step_gradients: a rank without a micro-batch takes part, and gets the gradient as well"""
    check_step(submission, [[3, 2], []])
    check_step(submission, [[], [1], [2, 3]])


@pytest.mark.points(2)
def test_one_exchange(submission):
    """step_gradients: gradients travel once a step, as tensors, and are added up on the way"""
    for world in (2, 4):
        few, many = ([[3] * m] * world for m in (1, 3))
        one, three = check_step(submission, few), check_step(submission, many)
        fail_on(three, added_on_the_way(three, SIZE, "its gradients"), given(many))
        fail_on(three, travels_once(bytes_sent(one), bytes_sent(three)), given(many))


def travels_once(one, three):
    for rank, (few, many) in enumerate(zip(one, three, strict=True)):
        if many > few + SIZE / 2:
            said = f"with 3 micro-batches rank {rank} gives away {many:,} bytes, and with 1 it is {few:,}"
            yield Finding(f"{said}: micro-batches cost no messages, so add up first and exchange once", rank=rank)


@pytest.mark.points(1)
def test_step_of_a_group(submission):
    """step_gradients: among ranks 1, 2 and 4 of five, given as `group`"""
    ranks, sizes = (1, 2, 4), [[3, 1], [2], [4]]
    own = iter(micro_batches_of(sizes))
    everybody = per_rank([next(own) if rank in ranks else [] for rank in range(5)])
    run = submission.run("step_gradients", everybody, world=5, group=ranks, around=one_step, given=given(sizes))
    fail_on(run, summed_up(run, sizes, ranks), given(sizes))


# -- momentum ----------------------------------------------------------------------------------------------------------


def on_the_way():
    """Weights and velocity of a training that has begun."""
    return torch.linspace(-1, 1, 4, dtype=torch.float64), torch.linspace(0.5, -0.4, 4, dtype=torch.float64)


def trained(momentum_step, rates, momentum):
    """Minimises half the squared distance to a point: after each step (weights, velocity)."""
    weights, velocity = on_the_way()
    seen = []
    for before, rate in zip([rates[0], *rates], rates, strict=False):
        momentum_step(weights, velocity, weights - 0.7, rate, before, momentum)
        seen.append((weights.clone(), velocity.clone()))
    return seen


def wrong_steps(seen, rates, m):
    """The first step that is not as it should be."""
    w, v = on_the_way()
    for step, (before, rate) in enumerate(zip([rates[0], *rates], rates, strict=False)):
        weights, velocity = seen[step]
        g, rho = w - 0.7, rate / before
        new = m * rho * v + rate * g
        where = f"in step {step}, whose rate is {rate:g} and was {before:g} before, "
        if said := other_than(velocity, new, velocity_mistakes(v, g, rate, rho, m)):
            yield Finding(f"{where}the velocity becomes {said}")
            return
        if said := other_than(weights, w - new, weight_mistakes(w, v, new, g, rate)):
            yield Finding(f"{where}the weights become {said}")
            return
        w, v = weights, velocity


def velocity_mistakes(v, g, rate, rho, m):
    kept = m * v + rate * g
    return {
        "what it was before: write into the tensor": v,
        "m v + rate g: v holds the old rate still, and has to be multiplied by rate / before": kept,
        "m v before / rate + rate g: the correction is upside down, it is the new rate over the old": (
            m * v / rho + rate * g
        ),
        "(rate / before) (m v + rate g): the gradient has the new rate already, only v is corrected": rho * kept,
        "(rate / before) v + rate g: the momentum is missing": rho * v + rate * g,
        "rate g alone: m v is missing": rate * g,
        "m v + g: the rate belongs inside, times the gradient": m * rho * v + g,
        "m v + before g: the gradient gets the rate of this step": m * rho * v + rate / rho * g,
        "m v + (1 - m) rate g: the gradient counts in full here": m * rho * v + (1 - m) * rate * g,
        "m v - rate g: v has the sign of the gradient, and is subtracted": m * rho * v - rate * g,
    }


def weight_mistakes(w, v, new, g, rate):
    return {
        "what they were before: write into the tensor": w,
        "w - rate v: the rate is in v already": w - rate * new,
        "w - v with the old v: first comes the new one": w - v,
        "w + v: they go down the slope, w - v": w + new,
        "w - rate g: they move by v": w - rate * g,
    }


@pytest.mark.points(1)
def test_momentum_at_one_rate(submission):
    """momentum_step: while the rate stays the same"""
    rates = [0.1] * 4
    run = submission.run("momentum_step", rates, 0.9, world=1, around=trained, given="one rate, m = 0.9")
    fail_on(run, wrong_steps(run.results[0], rates, 0.9), "one rate, m = 0.9")


@pytest.mark.points(3)
def test_momentum_through_a_warm_up(submission):
    """momentum_step: while the rate grows, and when it falls"""
    rates = [warm_up_rate(i, 0.1, 0.4, 3) for i in range(6)] + [0.04] * 2
    for m in (0.9, 0.5):
        words = f"rates {', '.join(f'{rate:g}' for rate in rates)}, m = {m}"
        run = submission.run("momentum_step", rates, m, world=1, around=trained, given=words)
        fail_on(run, wrong_steps(run.results[0], rates, m), words)
