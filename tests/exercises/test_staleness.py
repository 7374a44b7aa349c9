"""The tests of the exercise `staleness`: three rules, plugged into the course's own server, and asked directly.

On the server, workers push in an order that is made here, at random, by the right rule, which it uses to the full. What
the server did then shows the reader's rule: its begins, updates and drops, and the parameters that it sent out.
"""

import random
from functools import partial

import pytest
import torch

from dtcourse.grading.corrections import Stale, compensated, difference
from dtcourse.grading.findings import Finding, explained_by, fail_on, number_of
from dtcourse.grading.replay import at_once, corrected_by, first, replayed
from dtcourse.grading.serving import (
    AskCompensate,
    AskCompensateAdaptive,
    AskFirstK,
    AskMayBegin,
    answers,
    like,
    train,
    two_like,
)
from dtcourse.grading.updates import bound, first_k_applied, staleness_bounded

LAMBDAS = {1: 0.3, 2: 0.2, 3: 0.1, 4: 0.05}  # workers -> lambda
MOMENTUM = 0.75
DIRECTLY = "asked directly"


# -- who pushes when ---------------------------------------------------------------------------------------------------


def bounded_turns(workers, s, steps=6):
    """Workers of very different speeds, none more than s steps ahead of the slowest."""
    chance = random.Random(f"{workers} {s}")
    completed, speed = dict.fromkeys(range(1, workers + 1), 0), [chance.choice((1, 5, 25)) for _ in range(workers)]
    while left := [w for w in completed if completed[w] < steps]:
        able = [w for w in left if completed[w] - min(completed.values()) <= s]
        (worker,) = chance.choices(able, [speed[w - 1] for w in able])
        completed[worker] += 1
        yield worker


def first_k_turns(workers, k, steps=4):
    """The k-th gradient of a step ends it; who has pushed begins the newest step, or waits for the next."""
    chance = random.Random(f"{workers} {k}")
    step, kept, begun, waiting = 0, 0, dict.fromkeys(range(1, workers + 1), 0), set()
    while able := [w for w in begun if begun[w] < steps and w not in waiting]:
        worker = chance.choice(able)
        yield worker
        waiting.add(worker)
        kept += begun[worker] == step
        if kept == k:
            step, kept = step + 1, 0
        go_on = {w for w in waiting if begun[w] < step}
        begun |= dict.fromkeys(go_on, step)
        waiting -= go_on


def shuffled_turns(workers, steps=5):
    turns = [*range(1, workers + 1)] * steps
    random.Random(workers).shuffle(turns)
    return turns


# -- what they push ----------------------------------------------------------------------------------------------------


def one_hot(worker, parameters):
    """So the parameters tell whose gradients were applied, and with which share."""
    gradient = torch.zeros_like(parameters)
    gradient[worker - 1] = 1
    return gradient


def towards_its_own(worker, parameters):
    """The gradient of half the squared distance to a point of the worker's own."""
    return parameters - 3 * torch.sin(torch.arange(1, 1 + len(parameters)) * (worker + 0.5))


def training(ask, gradient, size):
    """Around a rule: all ranks train, and the policy `ask` asks it."""

    def around(rule, turns, *constants):
        train(ask(rule, *constants), torch.linspace(-1, 1, size, dtype=torch.float64), gradient, turns)

    return around


# -- bounded staleness -------------------------------------------------------------------------------------------------


@pytest.mark.points(3)
def test_bounded_staleness_on_the_server(submission):
    """bounded staleness, on the server: nobody begins a step too early, nobody is kept from it for too long"""
    for workers, s in ((1, 0), (1, 2), (2, 0), (2, 1), (3, 0), (3, 3), (4, 1)):
        turns, around = [*bounded_turns(workers, s)], training(AskMayBegin, one_hot, workers)
        given, expected = f"{number_of(workers, 'worker')}, s = {s}", partial(staleness_bounded, s=s)
        with explained_by(expected, given):
            run = submission.run("may_begin", turns, s, world=1 + workers, around=around, given=given)
        fail_on(run, expected(run), given)
        fail_on(run, replayed(run, turns, one_hot, at_once, ahead=s), given)


@pytest.mark.points(1)
def test_bounded_staleness_of_any_workers(submission):
    """bounded staleness: the right answer whoever works and however far they are"""
    chance, cases = random.Random(0), []
    for _ in range(400):
        workers, first = sorted(chance.sample(range(1, 9), chance.randint(1, 5))), chance.randint(0, 20)
        spread = chance.randint(0, 5)
        completed = {worker: first + chance.randint(0, spread) for worker in workers}
        cases.append((chance.choice(workers), completed, chance.randint(0, 4)))
    run = submission.run("may_begin", cases, world=1, around=answers, given=DIRECTLY)
    fail_on(run, map(Finding, wrong_begins(cases, run.results[0])), DIRECTLY)


def wrong_begins(cases, answered):
    for (worker, completed, s), (answer, _) in zip(cases, answered, strict=True):
        step, slowest = completed[worker], min(completed.values())
        if bool(answer) != (step - slowest <= s):
            begins = f"worker {worker} {'would begin' if answer else 'would be kept from'} {bound(step, slowest, s)}"
            yield f"may_begin({worker}, {completed}, s={s}) returned {answer!r}, so {begins}"


# -- the first k -------------------------------------------------------------------------------------------------------


@pytest.mark.points(3)
def test_first_k_on_the_server(submission):
    """first k, on the server: an update averages the first k gradients of its step, and what comes late is dropped"""
    for workers, k in ((1, 1), (2, 1), (2, 2), (3, 2), (4, 1), (4, 3)):
        turns, around = [*first_k_turns(workers, k)], training(AskFirstK, one_hot, workers)
        given, expected = f"{number_of(workers, 'worker')}, k = {k}", partial(first_k_applied, k=k)
        with explained_by(expected, given):
            run = submission.run("first_k", turns, k, world=1 + workers, around=around, given=given)
        fail_on(run, expected(run), given)
        fail_on(run, replayed(run, turns, one_hot, first(k)), given)


@pytest.mark.points(1)
def test_first_k_in_any_order(submission):
    """first k: the right shares, whatever has arrived in whatever order"""
    chance, cases = random.Random(0), []
    for _ in range(400):
        step = chance.randint(0, 6)
        steps = [max(step - chance.choice((0, 0, 1, 3)), 0) for _ in range(chance.randint(0, 8))]
        cases.append((steps, step, chance.randint(1, 4)))
    run = submission.run("first_k", cases, world=1, around=answers, given=DIRECTLY)
    fail_on(run, map(Finding, wrong_shares(cases, run.results[0])), DIRECTLY)


def wrong_shares(cases, answered):
    for (steps, step, k), (answer, _) in zip(cases, answered, strict=True):
        first = [place for place, of in enumerate(steps) if of == step][:k]
        wanted = [(place in first) / k for place in range(len(steps))] if len(first) == k else None
        if answer is wanted or (answer and wanted and [*answer] == pytest.approx(wanted)):
            continue
        there = f"{number_of(steps.count(step), 'gradient')} of step {step} {'is' if steps.count(step) == 1 else 'are'}"
        yield f"first_k({steps}, step={step}, k={k}) returned {answer!r}; {there} there, so it has to be {wanted}"


# -- delay compensation ------------------------------------------------------------------------------------------------


@pytest.mark.points(3)
def test_compensation_on_the_server(submission):
    """delay compensation, on the server: each gradient is corrected by its own worker's backup"""
    around = training(AskCompensate, towards_its_own, 5)
    for workers, lambda_ in LAMBDAS.items():
        given, turns = f"{number_of(workers, 'worker')}, lambda = {lambda_}", shuffled_turns(workers)
        run = submission.run("compensate", turns, lambda_, world=1 + workers, around=around, given=given)
        fail_on(run, compensated(run, corrected(plain(lambda_)), mistakes(plain(lambda_))), given)
        fail_on(run, replayed(run, turns, towards_its_own, corrected_by(corrected(plain(lambda_)))), given)


@pytest.mark.points(3)
def test_adaptive_compensation_on_the_server(submission):
    """adaptive delay compensation, on the server: the strength goes by the mean square, with this gradient in it"""
    around = training(AskCompensateAdaptive, towards_its_own, 5)
    for workers, lambda_ in LAMBDAS.items():
        given, constants = f"{number_of(workers, 'worker')}, lambda = {lambda_}", (lambda_, MOMENTUM)
        turns, world = shuffled_turns(workers), 1 + workers
        run = submission.run("compensate_adaptive", turns, *constants, world=world, around=around, given=given)
        fail_on(run, compensated(run, corrected(adaptive(lambda_)), adaptive_mistakes(lambda_)), given)
        fail_on(run, replayed(run, turns, towards_its_own, corrected_by(corrected(adaptive(lambda_)))), given)


@pytest.mark.points(1)
def test_compensation_of_any_shape(submission):
    """delay compensation, of both kinds: tensors of any shape and dtype stay as they are, and new ones are returned"""
    for dtype in (torch.float64, torch.float32):
        for shape in ((5,), (2, 3), ()):
            stale, given = some_stale(shape, dtype), f"tensors of shape {shape}, {dtype}"
            case = (stale.g, stale.weights, stale.backup, 0.3)
            run = submission.run("compensate", [case], world=1, around=each("compensate", like), given=given)
            fail_on(run, wrong_answer(run.results[0], stale, case, plain(0.3), mistakes(plain(0.3))), given)
            case = (*case, mean_square(stale.gradients[:-1]), MOMENTUM)
            around = each("compensate_adaptive", two_like)
            run = submission.run("compensate_adaptive", [case], world=1, around=around, given=given)
            fail_on(run, wrong_answer(run.results[0], stale, case, adaptive(0.3), adaptive_mistakes(0.3)), given)


def corrected(strength):
    """The rule, where strength(stale) is lambda or what stands for it."""
    return lambda stale: stale.g + strength(stale) * stale.g * stale.g * stale.drift


def plain(lambda_):
    return lambda stale: lambda_


def adaptive(lambda_, momentum=MOMENTUM):
    return lambda stale: lambda_ / (mean_square(stale.gradients, momentum) + 1e-7).sqrt()


def mean_square(gradients, momentum=MOMENTUM):
    found = torch.zeros_like(gradients[0])
    for g in gradients:
        found = momentum * found + (1 - momentum) * g * g
    return found


def mistakes(strength):
    """What to say to those who apply something else."""
    return {
        "it was applied as it came, without a correction, though the weights had changed": lambda stale: stale.g,
        "it was corrected in the wrong direction; the difference is weights - backup": (
            lambda stale: stale.g - strength(stale) * stale.g * stale.g * stale.drift
        ),
        "the correction has g in it where g g belongs": lambda stale: stale.g + strength(stale) * stale.g * stale.drift,
        "the correction was applied alone; it belongs to the gradient": (
            lambda stale: strength(stale) * stale.g * stale.g * stale.drift
        ),
        "lambda is missing in the correction": lambda stale: stale.g + stale.g * stale.g * stale.drift,
    }


def adaptive_mistakes(lambda_):
    older = lambda stale: [torch.zeros_like(stale.g), *stale.gradients[:-1]]  # noqa: E731
    return mistakes(adaptive(lambda_)) | {
        "the strength goes by the old mean square; this gradient has to be in it already": (
            corrected(lambda stale: lambda_ / (mean_square(older(stale)) + 1e-7).sqrt())
        ),
        "the mean square knows this gradient alone; it is a running mean over all": (
            corrected(lambda stale: lambda_ / (mean_square([stale.g]) + 1e-7).sqrt())
        ),
        "m and 1 - m are swapped in the mean square": corrected(adaptive(lambda_, 1 - MOMENTUM)),
        "the strength is lambda / ms; it is lambda / sqrt(ms)": (
            corrected(lambda stale: lambda_ / (mean_square(stale.gradients) + 1e-7))
        ),
        "the strength is lambda alone, without the mean square": corrected(plain(lambda_)),
    }


def some_stale(shape, dtype):
    chance = torch.Generator().manual_seed(0)
    *gradients, weights, backup = (torch.randn(shape, generator=chance, dtype=dtype) for _ in range(5))
    return Stale(gradients, weights, backup)


def each(name, check):
    """Around a rule: what it returns for each case, if it is of the right type."""
    return lambda rule, cases: answers(lambda *case: check(case[0], rule(*case), name), cases)


def wrong_answer(answered, stale, case, strength, mistakes):
    ((answer, after),) = answered
    seen, new = (answer, None) if isinstance(answer, torch.Tensor) else answer
    if said := difference(
        seen, corrected(strength)(stale), stale, {said: rule(stale) for said, rule in mistakes.items()}
    ):
        yield Finding(said)
    if new is not None and not torch.allclose(new, wanted := mean_square(stale.gradients)):
        yield Finding(f"the new mean square is {new}; m ms + (1 - m) g g is {wanted}")
    for name, was, is_ in zip(("gradient", "weights", "backup", "lambda_", "mean_square"), case, after, strict=False):
        if not torch.equal(torch.as_tensor(was), torch.as_tensor(is_)):
            yield Finding(f"{name} was changed in place; make a new tensor")
