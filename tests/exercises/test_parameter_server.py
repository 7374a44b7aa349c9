"""The tests of the exercise `parameter_server`: the shards, each side against a given other side, both together.

All numbers are float64. What a rank sends or holds is told as a mixture of what the ranks began with: the parameters w,
and for each worker r its gradient g[r].
"""

import time
from dataclasses import replace
from operator import index

import pytest
import torch
import torch.distributed as dist

from dtcourse import per_rank
from dtcourse.events import RECV
from dtcourse.grading.findings import Finding, fail_on, number_of
from dtcourse.grading.letters import Count, Meant, ends_with, letters
from dtcourse.grading.messages import never_waited, own_messages, sent_bytes
from dtcourse.grading.mixtures import Mistake, mean_mistakes
from dtcourse.grading.partition import drawn, not_a_partition
from dtcourse.grading.values import in_place

WORLDS = (2, 3, 4, 5)  # one server, and 1 to 4 workers
SAMPLES = (3, 1, 4, 2)  # of the workers, in a round
RATE = 0.0625  # 1 / RATE is no number of samples: a step without it can be told from one that is not divided

# -- shards ------------------------------------------------------------------------------------------------------------

EXAMPLE = [10, 60, 20, 50, 40]
MODEL = [64 * 32 * 4, 32 * 4, 32 * 32 * 4, 32 * 4, 32 * 10 * 4, 10 * 4]  # weights and biases, in turn
SIZES = (EXAMPLE, MODEL, [8] * 7, [7, 6, 5, 4, 3, 2, 1], [1, 2, 3, 4, 5, 6, 100], [5])


def loads(shards, sizes):
    """The bytes on each server."""
    return [sum(sizes[parameter] for parameter in shard) for shard in shards]


def one_by_one(order, sizes, servers):
    """The shards, if each parameter in turn goes to the server that has the fewest bytes so far."""
    shards = [[] for _ in range(servers)]
    for parameter in order:
        so_far = loads(shards, sizes)
        shards[so_far.index(min(so_far))].append(parameter)
    return shards


def largest_first(sizes, servers):
    return one_by_one(sorted(range(len(sizes)), key=lambda i: -sizes[i]), sizes, servers)


def other_rules(sizes, servers):
    """Words for rules that one might take instead, and what they give."""
    everything = range(len(sizes))
    return {
        "dealing them out in turn": [everything[server::servers] for server in range(servers)],
        "going through the list in its own order": one_by_one(everything, sizes, servers),
        "taking the smallest first, or counting parameters instead of bytes": one_by_one(
            sorted(everything, key=lambda i: sizes[i]), sizes, servers
        ),
    }


def complete(run, sizes, servers):
    """Each parameter goes to one server, and all ranks say the same."""
    first = as_lists(run.results[0])
    for rank, result in enumerate(run.results):
        shards = as_lists(result)
        if shards is None or len(shards) != servers:
            wanted = f"a list of {number_of(servers, 'list')}, one for each server"
            yield Finding(f"rank {rank} returned {result!r}; it has to be {wanted}", 0, rank)
            continue
        for problem in not_a_partition(shards, len(sizes), "parameter", "server"):
            yield Finding(problem, 0, rank, drawing=drawn(shards, len(sizes), "server"))
        if shards != first:
            said = f"rank 0 has {first} and rank {rank} has {shards}: all have to come to the same result"
            yield Finding(said, 1, rank)


def as_lists(shards):
    """The shards as lists of ints, also where they are tuples, or numbers of NumPy; None if they are anything else."""
    try:
        return [[index(parameter) for parameter in shard] for shard in shards]
    except TypeError:
        return None


def balanced(run, sizes, servers):
    """No server has more bytes than the largest-first rule gives to the fullest."""
    shards = as_lists(run.results[0])
    best, got = max(loads(largest_first(sizes, servers), sizes)), loads(shards, sizes)
    if max(got) > best:
        fullest = got.index(max(got))
        said = (
            f"server {fullest} gets {got[fullest]} of {sum(sizes)} bytes; with the largest first none has over {best}"
        )
        known = [words for words, other in other_rules(sizes, servers).items() if same_shards(other, shards)]
        yield Finding(said + (f". This looks like {known[0]}" if known else ""), 1, 0)


def same_shards(some, others):
    """Whichever server has which of them."""
    return sorted(map(sorted, some)) == sorted(map(sorted, others))


def sizes_and_servers(sizes, servers):
    return f"sizes {sizes}, {number_of(servers, 'server')}"


@pytest.mark.points(2)
def test_every_parameter_has_a_server(submission):
    """shards: each parameter goes to one server, and all ranks agree"""
    for sizes in SIZES:
        for servers in (1, 2, 3):
            given = sizes_and_servers(sizes, servers)
            run = submission.run("assign_shards", sizes, servers, world=3, given=given)
            fail_on(run, complete(run, sizes, servers), given)


@pytest.mark.points(2)
def test_shards_are_balanced(submission):
    """shards: no server gets more bytes than with the largest first"""
    for sizes in SIZES:
        for servers in (2, 3, 4):
            given = sizes_and_servers(sizes, servers)
            run = submission.run("assign_shards", sizes, servers, world=1, given=given)
            fail_on(run, complete(run, sizes, servers), given)
            fail_on(run, balanced(run, sizes, servers), given)


# -- what the ranks begin with -----------------------------------------------------------------------------------------


def numbers(seed, length):
    return torch.randn(length, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def parameters_of(rank, length):
    """Different on each rank, so that what was pulled can be told from what was there before."""
    return numbers(rank, length)


def centre_of(rank, length):
    return numbers(10 + rank, length)


def gradient_of(rank, length):
    return numbers(20 + rank, length)


def slope(parameters, centre):
    """The gradient of a bowl around `centre`: different at all parameters, and not only in its size."""
    return (parameters - centre) ** 3


def in_words(world):
    return f"{' + '.join(map(str, SAMPLES[: world - 1]))} samples"


# -- a worker ----------------------------------------------------------------------------------------------------------


def with_a_given_server(worker_step, parameters, centre, samples):
    """Rank 0 is a given server: it sends its parameters to each worker, then takes in from each the number of samples,
    then the gradient. The other ranks run your worker_step."""
    workers = range(1, dist.get_world_size())
    if dist.get_rank() in workers:
        return worker_step(parameters, lambda pulled: slope(pulled, centre), samples, 0)
    for worker in workers:
        dist.send(parameters, worker)
    for worker in workers:
        dist.recv(torch.empty(1, dtype=torch.int64), worker)
        dist.recv(torch.empty_like(parameters), worker)
    return None


def for_workers(world, length):
    """Parameters, the centre of the bowl, and the number of samples, of each rank."""
    ranks = range(world)
    parameters, centres = [parameters_of(r, length) for r in ranks], [centre_of(r, length) for r in ranks]
    return per_rank(parameters), per_rank(centres), per_rank((0, *SAMPLES[: world - 1]))


def push(rank, length):
    """What a worker has to send."""
    samples, centre = SAMPLES[rank - 1], centre_of(rank, length)
    old, new = parameters_of(rank, length), parameters_of(0, length)
    parts = {"g(w)": slope(new, centre), "g(old w)": slope(old, centre), "w": new, "old w": old}
    mistakes = [
        Mistake({"g(old w)": 1}, "Pull first, then compute: old w is what it had before the pull"),
        Mistake({"w": 1}, "The server needs the gradient, gradient(w), and not the parameters"),
        Mistake({"g(w)": -1}, "The server turns the sign round, when it takes its step"),
        Mistake({"g(w)": samples}, "The server weights it by its samples"),
        Mistake({"g(w)": 1 / samples}, "gradient(w) is the mean over its samples already"),
    ]
    return [Count("its number of samples", samples), Meant("its gradient", {"g(w)": 1}, parts, mistakes)]


def workers_send(run, length):
    yield from own_messages(run)
    yield from never_waited(run)
    for rank in range(1, run.world_size):
        yield from letters(run, rank, {0: push(rank, length)}, "a worker")


def workers_hold(run, length):
    yield from in_place(run)
    for rank in range(1, run.world_size):
        parts = {"w": parameters_of(0, length), "old w": parameters_of(rank, length)}
        parts["g(w)"] = slope(parts["w"], centre_of(rank, length))
        pulled_elsewhere = Mistake({"old w": 1}, "Receive into the given tensor itself")
        yield from ends_with(run, rank, Meant("its parameters", {"w": 1}, parts, [pulled_elsewhere]))


@pytest.mark.points(3)
def test_worker_pushes(submission):
    """worker: pushes its number of samples, and the gradient at what it has pulled"""
    for world in WORLDS:
        for length in (6, 1):
            given = for_workers(world, length)
            run = submission.run("worker_step", *given, world=world, around=with_a_given_server, given=in_words(world))
            fail_on(run, workers_send(run, length), in_words(world))


@pytest.mark.points(1)
def test_worker_holds_what_it_pulled(submission):
    """worker: ends with the parameters that it has pulled, in place"""
    for world in WORLDS:
        given = for_workers(world, 6)
        run = submission.run("worker_step", *given, world=world, around=with_a_given_server, given=in_words(world))
        fail_on(run, workers_hold(run, 6), in_words(world))


# -- the server --------------------------------------------------------------------------------------------------------


def with_given_workers(server_step, parameters, gradient, samples, server):
    """Your server_step runs on one rank. The others are given workers: each sends its number of samples, then its
    gradient, and then takes in the new parameters. All at the same time: the next message may be another worker's."""
    if dist.get_rank() == server:
        return server_step(parameters, list(samples), RATE)
    if dist.get_rank() in samples:
        dist.send(torch.tensor([samples[dist.get_rank()]]), server)
        time.sleep(0.01)  # whoever now receives from just anybody meets another worker
        dist.send(gradient, server)
        dist.recv(parameters, server)
    return None


def for_server(world, length, server=0, workers=None):
    """Parameters and gradient of each rank; the number of samples by worker; and who serves."""
    parameters, gradients = (
        [parameters_of(r, length) for r in range(world)],
        [gradient_of(r, length) for r in range(world)],
    )
    return per_rank(parameters), per_rank(gradients), samples_of(workers or range(1, world)), server


def samples_of(workers):
    return dict(zip(workers, SAMPLES, strict=False))


def new_parameters(samples, length, server):
    """What the server has to send, and to hold."""
    names = {worker: f"lr g[{worker}]" for worker in samples}
    parts = {"w": parameters_of(server, length)}
    parts |= {name: RATE * gradient_of(worker, length) for worker, name in names.items()}
    mean = {names[worker]: n / sum(samples.values()) for worker, n in samples.items()}
    each_once = dict.fromkeys(mean, 1)
    means = mean_mistakes({names[worker]: n for worker, n in samples.items()}, len(samples))
    mistakes = [
        Mistake({"w": 1}, "Those are the parameters that it began with: take the step before you send"),
        Mistake(step(each_once), "That is a step for each gradient, or along their sum: take one along their mean"),
        Mistake(step(mean, -1), "That goes uphill"),
        Mistake(step(mean, 1 / RATE), "The learning rate is missing"),
        Mistake(step(mean, -1 / RATE, of=0), "That is the mean gradient: send the parameters"),
        Mistake(step(mean, of=0), "That is the step alone: send the parameters"),
        *[Mistake(step(mistake.mixture), mistake.advice) for mistake in means],
    ]
    return Meant("the new parameters", step(mean), parts, mistakes)


def step(mean, length=1, of=1):
    """w minus a step along this mixture of gradients."""
    return {"w": of} | {name: -length * amount for name, amount in mean.items()}


def answered_early(run, samples, server):
    """The server sends nothing before it has all gradients."""
    last = {e.peer: e for e in run.events if e.kind == RECV and e.rank == server}  # the gradient of each worker
    for e in run.messages(server):
        for worker in samples:
            said = f"rank {server} sent rank {e.peer} parameters before it had"
            if worker not in last or last[worker].posted > e.posted:
                rule = "in a synchronous round nobody gets new parameters before all gradients are in"
                yield Finding(f"{said} received the gradient of rank {worker}; {rule}", e.step, server, e.line)
            elif last[worker].pending or last[worker].ended > e.posted:
                what = f"waited for the gradient of rank {worker}: call .wait() on what irecv returned"
                yield Finding(f"{said} {what}", e.step, server, e.line)


def server_sends(run, samples, length, server=0):
    yield from own_messages(run)
    if early := list(answered_early(run, samples, server)):
        yield early[0]
        return  # what it sent then is something else, of course
    meant = new_parameters(samples, length, server)
    yield from letters(run, server, {worker: [meant] for worker in samples}, "the server")


def server_holds(run, samples, length, server=0):
    yield from in_place(run)
    meant = new_parameters(samples, length, server)
    elsewhere = "The given tensor has to change, in place: parameters -= ..., where parameters = ... makes another one"
    yield from ends_with(run, server, replace(meant, mistakes=[Mistake({"w": 1}, elsewhere), *meant.mistakes]))


@pytest.mark.points(3)
def test_server_answers(submission):
    """server: with all gradients in, one step along their mean over samples, and each worker gets the result"""
    for world in WORLDS:
        for length in (6, 1):
            given = for_server(world, length)
            run = submission.run("server_step", *given, world=world, around=with_given_workers, given=in_words(world))
            fail_on(run, server_sends(run, samples_of(range(1, world)), length), in_words(world))


@pytest.mark.points(1)
def test_server_holds_the_new_parameters(submission):
    """server: ends with the new parameters, in place"""
    for world in WORLDS:
        given = for_server(world, 6)
        run = submission.run("server_step", *given, world=world, around=with_given_workers, given=in_words(world))
        fail_on(run, server_holds(run, samples_of(range(1, world)), 6), in_words(world))


@pytest.mark.points(1)
def test_any_ranks(submission):
    """server: on rank 2 of five, with ranks 4 and 1 as its workers"""
    given, who = for_server(5, 6, server=2, workers=(4, 1)), "rank 2 serves ranks 4 and 1"
    run = submission.run("server_step", *given, world=5, around=with_given_workers, given=who)
    fail_on(run, server_sends(run, samples_of((4, 1)), 6, server=2), who)
    fail_on(run, server_holds(run, samples_of((4, 1)), 6, server=2), who)


# -- both --------------------------------------------------------------------------------------------------------------

ROUNDS = 4
WEIGHTS = 6


def error_slope(weights, x, y):
    """The gradient of half the mean squared error of a linear model; x is (n, WEIGHTS), y is (n,)."""
    return x.T @ (x @ weights - y) / len(y)


def training(functions, parameters, batches):
    """Rank 0 sends its parameters to each worker and runs your server_step, once a round; the others run your
    worker_step once a round, and then take in the parameters once more."""
    server_step, worker_step = functions
    workers = range(1, dist.get_world_size())
    if dist.get_rank() == 0:
        for worker in workers:
            dist.send(parameters, worker)
        for _ in range(ROUNDS):
            server_step(parameters, workers, RATE)
        return
    for x, y in batches:
        worker_step(parameters, lambda weights, x=x, y=y: error_slope(weights, x, y), len(y), 0)
    dist.recv(parameters, 0)


def shares(workers):
    """For each worker its batch of each round: shares of unequal size, and in the last round smaller ones."""
    sizes = [SAMPLES[:workers]] * (ROUNDS - 1) + [(1,) * workers]
    data = numbers(1, 100 * (WEIGHTS + 1)).view(-1, WEIGHTS + 1)
    cuts = data[: sum(map(sum, sizes))].split([n for row in sizes for n in row])
    return [[(cut[:, :-1], cut[:, -1]) for cut in cuts[worker::workers]] for worker in range(workers)]


def alone(batches):
    """The same training in one process: its parameters at first, and after each step on all shares of a round."""
    path = [parameters_of(0, WEIGHTS)]
    for shares_of_round in zip(*batches, strict=True):
        x, y = (torch.cat(parts) for parts in zip(*shares_of_round, strict=True))
        path.append(path[-1] - RATE * error_slope(path[-1], x, y))
    return path


def like_one_process(run, batches):
    """Every message of the training is what one process would have come to in that round; so is what the ranks hold.

    w[1] are the parameters after one round; g(w[1]) is the gradient of a worker's batch of the next round there.
    """
    path, workers = alone(batches), range(1, run.world_size)
    parts = {f"w[{n}]": w for n, w in enumerate(path)}
    published = [
        Meant(f"the parameters after {number_of(n, 'round')}", {name: 1}, parts) for n, name in enumerate(parts)
    ]
    yield from letters(run, 0, dict.fromkeys(workers, published), "the server")
    for worker in workers:
        yield from letters(run, worker, {0: list(pushes(path, batches[worker - 1]))}, "a worker")
    for rank in range(run.world_size):
        yield from ends_with(run, rank, published[-1])


def pushes(path, batches):
    """What a worker with these batches sends in a training in which the parameters take this path."""
    for n, (x, y) in enumerate(batches):
        gradients = {f"g(w[{m}])": error_slope(w, x, y) for m, w in enumerate(path[: n + 1])}
        yield Count(f"its number of samples in round {n + 1}", len(y))
        yield Meant(f"its gradient in round {n + 1}", {f"g(w[{n}])": 1}, gradients)


@pytest.mark.points(3)
def test_training(submission):
    """both: a training in four rounds equals that of one process; W (S + 8) bytes in and W S out, each round"""
    for world in WORLDS:
        batches, s = shares(world - 1), WEIGHTS * 8
        given = per_rank([parameters_of(rank, WEIGHTS) for rank in range(world)]), per_rank([[], *batches])
        run = submission.run(("server_step", "worker_step"), *given, world=world, around=training)
        fail_on(run, like_one_process(run, batches))
        counts = [(ROUNDS + 1) * (world - 1) * s] + [ROUNDS * (s + 8)] * (world - 1)
        formulas = [f"{ROUNDS + 1} W S"] + [f"{ROUNDS} (S + 8)"] * (world - 1)
        fail_on(run, sent_bytes(run, counts, formulas, "a training of four rounds"))
