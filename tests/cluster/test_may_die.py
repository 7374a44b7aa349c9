"""A rank that may die: the others hear of it where they need it, and nothing of theirs is lost, doubled or stuck."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from dtcourse import Cluster, Deadlock, RankDied, RankError, Run, mark

LARGE = 1 << 26  # elements of float32: the copy takes long enough to be interrupted


@pytest.fixture(scope="module", params=["direct", "staged"])
def cluster(request):
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "staged":
            patch.setenv("DTCOURSE_WINDOWS", "staged")
        with Cluster(4, backend="shared_memory") as cluster:  # the ranks get the environment each time they start
            cluster.staged = request.param == "staged"
            yield cluster


@pytest.fixture(autouse=True)
def the_next_run_works(cluster):
    yield
    run = cluster.run(lambda: dist.get_rank() * 10)
    assert run.results == [0, 10, 20, 30] and run.dead == []


def this_line(text: str) -> str:
    for number, line in enumerate(Path(__file__).read_text().splitlines(), 1):
        if text in line:
            return f"test_may_die.py, line {number}"
    raise AssertionError(text)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def heard(operation) -> int | str:
    """The rank whose death the operation raises."""
    try:
        operation()
    except ConnectionError as death:
        return death.rank
    return "nothing"


# -- who needs the dead one ---------------------------------------------------------------------------------------

OPERATIONS = {
    "recv": lambda: dist.recv(torch.zeros(1), 2),
    "recv from any": lambda: dist.recv(torch.zeros(1)),
    "send": lambda: dist.send(torch.zeros(1), 2),
    "irecv": lambda: dist.irecv(torch.zeros(1), 2).wait(),
    "isend": lambda: dist.isend(torch.zeros(1), 2).wait(),
    "barrier": lambda: dist.barrier(),
    "small all_reduce": lambda: dist.all_reduce(torch.ones(3)),
    "large all_reduce": lambda: dist.all_reduce(torch.ones(100_000)),
    "asynchronous all_reduce": lambda: dist.all_reduce(torch.ones(100_000), async_op=True).wait(),
    "broadcast": lambda: dist.broadcast(torch.ones(3), src=2),
    "broadcast to it": lambda: dist.broadcast(torch.ones(3), src=0),
    "object collective": lambda: dist.all_gather_object([None] * 4, "x"),
}


@pytest.mark.parametrize("when", ["while it waits", "before it begins"])
def test_whatever_needs_a_dead_rank_says_so(cluster, when):
    def function():
        if dist.get_rank() == 2:
            time.sleep(0.15 if when == "while it waits" else 0)
            die()
        if when == "before it begins":
            time.sleep(0.15)
        return {name: heard(operation) for name, operation in OPERATIONS.items()}

    run = cluster.run(function, may_die={2})
    assert run.results == [dict.fromkeys(OPERATIONS, 2)] * 2 + [None] + [dict.fromkeys(OPERATIONS, 2)]
    assert run.dead == [2] and run.failure is None


@pytest.mark.parametrize("name", OPERATIONS)
def test_each_of_them_is_woken_by_the_death(cluster, name):
    def function():
        if dist.get_rank() == 2:
            time.sleep(0.1)
            die()
        return heard(OPERATIONS[name])

    assert cluster.run(function, may_die={2}).results == [2, 2, None, 2]


def test_whoever_asks_until_it_is_complete_hears_of_it_too(cluster):
    def function():
        if dist.get_rank() == 2:
            time.sleep(0.1)
            die()
        if dist.get_rank() == 0:
            handle = dist.irecv(torch.zeros(1), 2)
            return heard(lambda: [time.sleep(0.001) for _ in iter(handle.is_completed, True)]), heard(handle.wait)

    assert cluster.run(function, may_die={2}).results[0] == (2, 2)


def test_a_message_posted_and_left_to_itself_keeps_nobody(cluster):
    def function():
        if dist.get_rank() == 2:
            dist.isend(torch.ones(1), 0)
            dist.irecv(torch.ones(1), 0)
            die()
        if dist.get_rank() == 0:
            heard(lambda: dist.recv(torch.zeros(1), 2, tag=7))
            return [heard(lambda: dist.recv(torch.zeros(1))), dist.recv(torch.zeros(1)), heard(OPERATIONS["send"])]
        dist.send(torch.zeros(1), 0) if dist.get_rank() == 1 else None

    assert cluster.run(function, may_die={2}).results[0] == [2, 1, 2]


def test_groups_and_messages_without_the_dead_rank_go_on(cluster):
    def function():
        living = dist.new_group([0, 1, 3])
        rank, x = dist.get_rank(), torch.ones(100_000)
        if rank == 2:
            die()
        assert heard(OPERATIONS["barrier"]) == 2
        for _ in range(5):
            dist.all_reduce(x, group=living)
        if rank:
            dist.send(torch.full((1,), float(rank)), 0)
            return x[-1].item()
        return x[-1].item(), dist.recv(torch.zeros(1), 3), dist.recv(torch.zeros(1), 1)

    assert cluster.run(function, may_die={2}).results == [(243, 3, 1), 243, None, 243]


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_group_cannot_be_made_with_a_dead_rank(cluster, when):
    def function():
        if dist.get_rank() == 2:
            time.sleep(0.1 if when == "meanwhile" else 0)
            die()
        if when == "before":
            heard(OPERATIONS["recv"])
        said = heard(lambda: dist.new_group([0, 2]))
        living = dist.new_group([0, 1, 3])
        x = torch.ones(1)
        dist.all_reduce(x, group=living)
        return said, x.item()

    assert cluster.run(function, may_die={2}).results == [(2, 3), ("nothing", 3), None, ("nothing", 3)]


# -- receive from any -------------------------------------------------------------------------------------------------


def test_a_receive_from_any_names_each_death_once_and_goes_on(cluster):
    def function():
        rank, x = dist.get_rank(), torch.zeros(1)
        if rank == 0:
            said = []
            for _ in range(4):
                try:
                    said.append(("hears", dist.recv(x)))
                except ConnectionError as death:
                    said.append(("dead", death.rank))
            return said
        time.sleep(0.15 * rank)
        if rank < 3:
            die()
        dist.send(x, 0)
        time.sleep(0.15)
        dist.send(x, 0)

    run = cluster.run(function, may_die={1, 2})
    assert sorted(run.results[0]) == [("dead", 1), ("dead", 2), ("hears", 3), ("hears", 3)]
    assert sorted(run.dead) == [1, 2]


def test_a_receive_from_any_when_all_others_have_died(cluster):
    def function():
        if dist.get_rank():
            die()
        return [heard(lambda: dist.recv(torch.zeros(1))) for _ in range(5)]

    deaths = cluster.run(function, may_die={1, 2, 3}).results[0]
    assert sorted(deaths[:3]) == [1, 2, 3] and set(deaths[3:]) <= {1, 2, 3}


def test_a_receive_from_any_when_the_others_have_died_or_returned_is_a_deadlock(cluster):
    def function():
        if dist.get_rank() == 2:
            die()
        if dist.get_rank() == 0:
            heard(lambda: dist.recv(torch.zeros(1)))
            dist.recv(torch.zeros(1))  # nobody is left

    with pytest.raises(Deadlock, match="ranks 1 and 3 have already returned") as error:
        cluster.run(function, may_die={2})
    assert error.value.waits[0][2] == (1, 3) and error.value.run.dead == [2]
    assert "rank 2 has died" in str(error.value) and this_line("# nobody is left") in str(error.value)


def test_a_deadlock_among_the_living_is_still_one(cluster):
    def function():
        rank = dist.get_rank()
        if rank == 2:
            die()
        heard(OPERATIONS["barrier"])
        if rank != 3:
            dist.recv(torch.zeros(1), 1 - rank)

    with pytest.raises(Deadlock) as error:
        cluster.run(function, may_die={2, 3})
    assert [(rank, needs) for rank, _, needs in error.value.waits] == [(0, (1,)), (1, (0,))]


# -- in the middle of a copy --------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", [2, None], ids=["from it", "from any"])
def test_death_while_it_writes_into_a_receiver(cluster, source):
    def function():
        rank, pids = dist.get_rank(), [None] * 4
        dist.all_gather_object(pids, os.getpid())
        x = torch.zeros(LARGE)
        if rank == 0:
            handle = dist.irecv(x, source)
            dist.send(torch.zeros(1), 2)
            while not cluster_staged and not x[0]:
                pass
            os.kill(pids[2], signal.SIGKILL)
            said = heard(handle.wait)
            dist.send(torch.zeros(1), 3)
            return said, x[-1].item(), dist.recv(torch.zeros(1), source and 3)
        if rank == 2:
            x.fill_(1)
            dist.recv(torch.zeros(1), 0)
            dist.send(x, 0)
        if rank == 3:
            dist.recv(torch.zeros(1), 0)
            dist.send(torch.zeros(1), 0)

    cluster_staged = cluster.staged  # bytes come into sight only when all are there
    assert cluster.run(function, may_die={2}).results[0] == (2, 0.0, 3)


def test_death_while_it_reads_from_a_sender(cluster):
    def function():
        rank, pids = dist.get_rank(), [None] * 4
        dist.all_gather_object(pids, os.getpid())
        if rank == 0:
            handle = dist.isend(torch.ones(LARGE), 2)
            dist.recv(torch.zeros(1), 2)
            time.sleep(0.005)
            os.kill(pids[2], signal.SIGKILL)
            return heard(handle.wait)
        if rank == 2:
            x = torch.zeros(LARGE)
            dist.send(torch.zeros(1), 0)
            dist.recv(x, 0)

    assert cluster.run(function, may_die={2}).results[0] == 2


def test_death_while_others_read_from_it(cluster):
    def function():
        rank, pids = dist.get_rank(), [None] * 4
        dist.all_gather_object(pids, os.getpid())
        if rank == 2:
            dist.isend(torch.ones(1000), 1)
            dist.send(torch.zeros(1), 0)
            time.sleep(60)
        if rank == 0:
            dist.recv(torch.zeros(1), 2)
            os.kill(pids[2], signal.SIGKILL)
            dist.send(torch.zeros(1), 1)  # at once: the reader's process cannot have told anybody yet
        if rank == 1:
            dist.recv(torch.zeros(1), 0)
            x = torch.zeros(1000)
            said = heard(lambda: dist.recv(x, 2))
            return said, x.sum().item()

    assert cluster.run(function, may_die={2}).results[1] in ((2, 0.0), ("nothing", 1000.0))


# -- how the run ends ---------------------------------------------------------------------------------------------


def test_a_death_that_nobody_needs_is_only_noted(cluster):
    def function():
        if dist.get_rank() == 2:
            mark("last words", value=1)
            dist.send(torch.zeros(5), 0)
            os._exit(3)
        if dist.get_rank() == 0:
            dist.recv(torch.zeros(5), 2)
        return "well"

    run = cluster.run(function, may_die=[2, 3])
    assert run.results == ["well", "well", None, "well"] and run.dead == [2]
    assert len(run.marks("last words", rank=2)) == 1 and run.bytes_sent(2) == 20


def test_who_died_is_saved_with_the_run(cluster, tmp_path):
    run = cluster.run(lambda: die() if dist.get_rank() == 2 else None, may_die={2})
    assert Run.load(run.save(tmp_path / "a.run")).dead == [2]


def test_what_nobody_catches_ends_the_run_as_a_death(cluster):
    def function():
        if dist.get_rank() == 2:
            ctypes.string_at(0)
        if dist.get_rank() == 0:
            dist.recv(torch.zeros(1), 2)  # needs it

    with pytest.raises(RankDied, match="rank 2 was ended by SIGSEGV") as error:
        cluster.run(function, may_die={2})
    assert error.value.rank == 2 and error.value.run.dead == [2]
    assert "rank 0 needed it at" in str(error.value) and this_line("# needs it") in str(error.value)


def test_another_error_stays_what_it_is(cluster):
    def function():
        if dist.get_rank() == 2:
            die()
        if dist.get_rank() == 0:
            heard(OPERATIONS["recv"])
            raise ValueError("of my own")

    with pytest.raises(RankError, match="of my own"):
        cluster.run(function, may_die={2})


def test_a_rank_that_may_not_die_ends_the_run(cluster):
    def function():
        if dist.get_rank() == 2:
            die()
        if dist.get_rank() == 1:
            heard(OPERATIONS["recv"])
            die()
        heard(lambda: dist.recv(torch.zeros(1), 1))

    with pytest.raises(RankDied) as error:
        cluster.run(function, may_die={2})
    assert error.value.rank == 1 and error.value.run.dead == [2, 1]


def test_a_rank_that_died_before_the_run(cluster):
    os.kill(cluster._crew.members[2].pid, signal.SIGKILL)
    run = cluster.run(lambda: None if dist.get_rank() == 2 else heard(OPERATIONS["recv"]), may_die={2})
    assert run.results == [2, 2, None, 2]


@pytest.mark.parametrize(
    "ranks, text",
    [([7], "7 is none"), (["2"], "'2' is none"), (range(4), "all ranks: leave out one")],
)
def test_ranks_that_make_no_sense_are_refused(cluster, ranks, text):
    with pytest.raises(ValueError, match=text):
        cluster.run(print, may_die=ranks)


def test_other_backends_refuse(cluster):
    with Cluster(2, backend="gloo") as other, pytest.raises(ValueError, match="needs the backend shared_memory"):
        other.run(print, may_die={1})


# -- at any moment ------------------------------------------------------------------------------------------------


def serve_and_ask(size: int, rounds: int):
    """Rank 0 answers whoever asks; the others ask `rounds` times. Rank 0 returns the numbers that each one asked."""
    rank, x = dist.get_rank(), torch.zeros(size)
    if rank:
        for number in range(rounds):
            x.fill_(number)
            dist.send(x, 0)
            dist.recv(x, 0)
            assert x[0] == x[-1] == number + 0.5
        return "done"
    asked: dict[int, list[int]] = {1: [], 2: [], 3: []}
    at_work, dead = {1, 2, 3}, []
    while at_work:
        try:
            who = dist.recv(x)
            assert x[0] == x[-1]
            asked[who].append(int(x[0]))
            if asked[who][-1] == rounds - 1:
                at_work.discard(who)
            dist.send(x + 0.5, who)
        except ConnectionError as death:
            at_work.discard(death.rank)
            dead.append(death.rank)
    return asked, dead


def kill_later(cluster: Cluster, rank: int, delay: float) -> threading.Timer:
    timer = threading.Timer(delay, os.kill, (cluster._crew.members[rank].pid, signal.SIGKILL))
    timer.start()
    return timer


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_a_worker_killed_at_any_moment(cluster, seed):
    chance = random.Random(seed)
    size, rounds = chance.choice([(1, 100), (1000, 100), (1 << 20, 20)])
    victim, delay = chance.randint(1, 3), chance.uniform(0.0, 0.25)
    cluster.run(lambda: None)  # so that the ranks are there
    timer = kill_later(cluster, victim, delay)
    run = cluster.run(serve_and_ask, size, rounds, may_die={1, 2, 3})
    timer.join()
    if not run.dead:  # the run was over before: the next one finds the victim dead
        with contextlib.suppress(RankDied):
            cluster.run(lambda: None)
    asked, dead = run.results[0]
    for worker in {1, 2, 3} - set(run.dead):
        assert asked[worker] == list(range(rounds)) and run.results[worker] == "done"
    for worker in run.dead:
        assert asked[worker] == list(range(len(asked[worker])))
    assert set(dead) <= set(run.dead) <= {victim}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_a_rank_killed_in_the_middle_of_collectives(cluster, seed):
    def function():
        done = 0
        try:
            while True:
                x = torch.full((chance.choice([10, 1 << 16, 1 << 22]),), 1.0)
                if chance.random() < 0.5:
                    dist.all_reduce(x)
                else:
                    dist.all_reduce(x, async_op=True).wait()
                assert x[0] == x[-1] == 4
                done += 1
        except ConnectionError as death:
            return done, death.rank

    chance = random.Random(seed)
    victim = chance.randint(0, 3)
    cluster.run(lambda: None)
    timer = kill_later(cluster, victim, chance.uniform(0.05, 0.3))
    run = cluster.run(function, may_die={victim})
    timer.join()
    counts = [result[0] for rank, result in enumerate(run.results) if rank != victim]
    assert run.dead == [victim] and max(counts) - min(counts) <= 1
    assert {result[1] for rank, result in enumerate(run.results) if rank != victim} == {victim}
