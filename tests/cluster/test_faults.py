"""What can go wrong on the ranks: each fault is named, and the next run works."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from dtcourse import Cluster, Deadlock, MismatchError, RankDied, RankError, RunTimeout, per_rank
from dtcourse.cluster.crew import Crew
from dtcourse.cluster.devices import Placement


@pytest.fixture(scope="module", params=["gloo", "shared_memory"])
def cluster(request):
    with Cluster(4, backend=request.param) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def the_next_run_works(cluster):
    yield
    run = cluster.run(lambda: dist.get_rank() * 10)
    assert run.results == [0, 10, 20, 30]


def this_line(text: str) -> str:
    """What an error says of the line of this file that contains `text`."""
    for number, line in enumerate(Path(__file__).read_text().splitlines(), 1):
        if text in line:
            return f"test_faults.py, line {number}"
    raise AssertionError(text)


# -- deadlocks --------------------------------------------------------------------------------------------------


def test_all_ranks_receive_first(cluster):
    def function():
        rank = dist.get_rank()
        x = torch.zeros(3)
        dist.recv(x, (rank - 1) % 4)  # all receive first
        dist.send(x, (rank + 1) % 4)

    with pytest.raises(Deadlock) as error:
        cluster.run(function)
    assert [(rank, needs) for rank, _, needs in error.value.waits] == [(0, (3,)), (1, (0,)), (2, (1,)), (3, (2,))]
    assert str(error.value).count(this_line("# all receive first")) == 4
    assert "[0]  waits for  [3]  waits for  [2]  waits for  [1]  waits for  [0]" in str(error.value)
    assert "isend" in str(error.value)
    assert len(error.value.run.receives()) == 4 and all(e.pending for e in error.value.run.events)


def test_all_ranks_send_first(cluster):
    def function():
        rank = dist.get_rank()
        dist.send(torch.zeros(1), (rank + 1) % 4)
        dist.recv(torch.zeros(1), (rank - 1) % 4)

    with pytest.raises(Deadlock, match="A send returns when the other side receives"):
        cluster.run(function)


def test_two_ranks_deadlock_while_a_third_computes(cluster):
    def function():
        rank = dist.get_rank()
        if rank == 2:
            end = time.monotonic() + 60
            while time.monotonic() < end:
                torch.ones(10).sum()
        elif rank < 2:
            dist.recv(torch.zeros(1), 1 - rank)

    with pytest.raises(Deadlock) as error:
        cluster.run(function)
    assert [rank for rank, _, _ in error.value.waits] == [0, 1]
    assert "rank 2 still computed" in str(error.value)


def test_rank_0_waits_for_a_rank_that_has_returned(cluster):
    def function():
        if dist.get_rank() == 0:
            dist.recv(torch.zeros(1), 2)

    with pytest.raises(Deadlock, match="rank 2 has already returned") as error:
        cluster.run(function)
    assert error.value.waits[0][2] == (2,)
    assert 2 in error.value.returned


def test_a_collective_that_one_rank_never_enters(cluster):
    def function():
        if dist.get_rank() != 1:
            dist.all_reduce(torch.ones(2))

    with pytest.raises(Deadlock, match="rank 1 has already returned") as error:
        cluster.run(function)
    assert {needs for _, _, needs in error.value.waits} == {(1,)}


def test_a_receive_from_any_with_nobody_left(cluster):
    def function():
        if dist.get_rank() == 0:
            dist.recv(torch.zeros(1))

    with pytest.raises(Deadlock, match="from any rank"):
        cluster.run(function)


def test_a_group_that_one_member_never_makes(cluster):
    def function(local):
        if dist.get_rank() == 2:
            dist.new_group([0, 2], use_local_synchronization=local)  # alone

    for local in (False, True):
        with pytest.raises(Deadlock, match="rank 0 has already returned") as error:
            cluster.run(function, local)
        assert error.value.waits[0][0::2] == (2, (0,))
        assert "rank 2 waits in new_group([0, 2]), for rank 0" in str(error.value)
        assert this_line("# alone") in str(error.value)


def test_a_group_that_its_members_alone_make(cluster):
    def function(members):
        x = torch.ones(1)
        if dist.get_rank() in members:
            dist.all_reduce(x, group=dist.new_group(members))
        return x.item()

    assert cluster.run(function, [1, 2]).results == [1, 2, 2, 1]
    assert cluster.run(function, [0, 1, 2, 3]).results == [4] * 4  # what the run before has made is forgotten


def test_receives_from_any_are_no_deadlock(cluster):
    def function():
        rank, x = dist.get_rank(), torch.zeros(1)
        if rank == 0:
            return sorted(dist.recv(x) for _ in range(3))
        time.sleep(0.15 * rank)
        dist.send(x, 0)

    assert cluster.run(function).results[0] == [1, 2, 3]


# -- disagreements ----------------------------------------------------------------------------------------------


def shapes():
    dist.all_reduce(torch.zeros(4 if dist.get_rank() else 5))


def dtypes():
    dist.all_reduce(torch.zeros(4, dtype=torch.float32 if dist.get_rank() else torch.int32))


def roots():
    dist.broadcast(torch.zeros(4), src=int(dist.get_rank() == 3))


def kinds():
    x = torch.zeros(4)
    dist.all_reduce(x) if dist.get_rank() else dist.broadcast(x, 0)


def reductions():
    dist.all_reduce(torch.zeros(4), op=dist.ReduceOp.SUM if dist.get_rank() else dist.ReduceOp.MAX)


def groups():
    rank = dist.get_rank()
    dist.new_group([rank % 2, rank % 2 + 2])  # torch would connect members of one with members of the other


def message_sizes():
    rank = dist.get_rank()
    if rank == 0:
        dist.send(torch.zeros(5), 1)
    elif rank == 1:
        dist.recv(torch.zeros(6), 0)


def message_dtypes():
    rank = dist.get_rank()
    if rank == 0:
        dist.send(torch.zeros(4, dtype=torch.int32), 1)
    elif rank == 1:
        dist.recv(torch.zeros(4), 0)


@pytest.mark.parametrize(
    ("function", "subject", "seen"),
    [
        (shapes, "the shape of all_reduce", ["(4,)", "(5,)"]),
        (dtypes, "the dtype of all_reduce", ["float32", "int32"]),
        (roots, "the root of broadcast", ["root 0", "root 1"]),
        (kinds, "which operation comes next", ["all_reduce", "broadcast"]),
        (reductions, "the reduction of all_reduce", []),
        (groups, "which group to make", ["new_group([0, 2])", "new_group([1, 3])"]),
        (message_sizes, "the size of a message", ["(5,)", "(6,)"]),
        (message_dtypes, "the dtype of a message", ["float32", "int32"]),
    ],
)
def test_two_ranks_disagree(cluster, function, subject, seen):
    for _ in range(5):  # whoever comes first, the answer is the same
        with pytest.raises(MismatchError) as error:
            cluster.run(function)
        assert subject in str(error.value).splitlines()[0]
        assert all(text in str(error.value) for text in [*seen, "test_faults.py, line"])


def past_the_end():
    dist.send(torch.zeros(1), dist.get_rank() + 1)


def before_the_start():
    dist.recv(torch.zeros(1), src=dist.get_rank() - 1)


def a_root_that_is_not_there():
    dist.broadcast(torch.zeros(1), src=-1)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (past_the_end, "rank 3 sends to rank 4, but this group has the ranks 0 to 3"),
        (before_the_start, "rank 0 receives from rank -1, but"),
        (a_root_that_is_not_there, "calls broadcast with the root rank -1, but"),
    ],
)
def test_a_rank_that_is_not_there(cluster, function, said):
    with pytest.raises((RankError, Deadlock)) as error:
        cluster.run(function)
    assert said in str(error.value)


# -- exceptions and deaths --------------------------------------------------------------------------------------


def test_one_rank_raises_while_three_wait(cluster):
    def function():
        if dist.get_rank() == 2:
            raise ValueError("no more")  # the raiser's line
        dist.barrier()

    with pytest.raises(RankError) as error:
        cluster.run(function)
    first, second = str(error.value).splitlines()[:2]
    assert first == "rank 2 raised ValueError: no more"
    assert this_line("# the raiser's line") in second
    assert error.value.rank == 2
    assert "ranks 0, 1 and 3 had not finished" in str(error.value)


def test_all_ranks_raise_the_same(cluster):
    pids = [m.pid for m in cluster._crew.members]
    with pytest.raises(RankError, match="raised the same"):
        cluster.run(lambda: 1 / 0)
    assert [m.pid for m in cluster._crew.members] == pids  # nobody waited: no reason to restart


def test_of_ranks_that_raise_different_things_the_lowest_is_told(cluster):
    """Whoever was first: the same mistake on all ranks, in words of each rank's own, is told alike each time."""

    def function():
        rank = dist.get_rank()
        time.sleep(0.15 * (rank == 1))
        if rank > 0:
            raise ValueError(f"as rank {rank}")

    with pytest.raises(RankError, match="rank 1 raised ValueError: as rank 1") as error:
        cluster.run(function)
    assert error.value.rank == 1


def test_sys_exit_is_no_way_out(cluster):
    with pytest.raises(RankError, match="raised SystemExit: 3"):
        cluster.run(lambda: sys.exit(3))


def test_a_rank_is_killed(cluster):
    victim = cluster._crew.members[1].pid
    threading.Timer(0.3, os.kill, (victim, signal.SIGKILL)).start()

    def function():
        if dist.get_rank() == 1:
            time.sleep(60)
        dist.barrier()

    with pytest.raises(RankDied, match="rank 1 was ended by SIGKILL") as error:
        cluster.run(function)
    assert error.value.rank == 1


def test_a_rank_that_was_killed_between_two_runs(cluster):
    os.kill(cluster._crew.members[3].pid, signal.SIGKILL)
    time.sleep(0.1)
    with pytest.raises(RankDied, match="rank 3 was ended by SIGKILL"):
        cluster.run(lambda: 1)


def test_a_rank_calls_os_exit(cluster):
    def function():
        if dist.get_rank() == 3:
            os._exit(5)
        dist.barrier()

    with pytest.raises(RankDied, match="rank 3 exited with code 5"):
        cluster.run(function)


def test_an_endless_loop_and_the_stop_button(cluster):
    def function():
        while True:  # endless
            pass

    threading.Timer(0.5, signal.raise_signal, (signal.SIGINT,)).start()
    with pytest.raises(KeyboardInterrupt, match="rank 0: .*test_faults.py, line"):
        cluster.run(function)


def test_the_stop_button_while_ranks_wait_in_the_library(cluster):
    def function():
        if dist.get_rank() == 0:
            time.sleep(60)
        dist.all_reduce(torch.ones(1))

    threading.Timer(0.5, signal.raise_signal, (signal.SIGINT,)).start()
    with pytest.raises(KeyboardInterrupt):
        cluster.run(function)


def test_a_timeout_says_where_the_ranks_are():
    def function():
        if dist.get_rank() == 0:
            while True:  # busy here
                pass
        dist.all_reduce(torch.ones(1))

    with Cluster(2, timeout=0.5) as cluster:
        with pytest.raises(RunTimeout) as error:
            cluster.run(function)
        assert this_line("while True:  # busy here").split(", line")[0] in str(error.value)
        assert "rank 1 waits in all_reduce" in str(error.value)
        assert cluster.run(lambda: 7).results == [7, 7]


@pytest.mark.parametrize("start_child", [lambda: os.system("sleep 5 &"), lambda: os.fork() or time.sleep(5)])
def test_a_rank_whose_child_outlives_it(cluster, start_child):
    def function():
        if dist.get_rank() == 3:
            start_child()
            os._exit(5)
        dist.barrier()

    start = time.monotonic()
    with pytest.raises(RankDied, match="rank 3 exited with code 5"):
        cluster.run(function)
    assert time.monotonic() - start < 3


def test_a_rank_that_dies_at_its_start(monkeypatch):
    fork = Crew._fork

    def kill_rank_1(crew, rank, meeting_place):
        member = fork(crew, rank, meeting_place)
        if rank == 1:
            os.kill(member.pid, signal.SIGKILL)
        return member

    monkeypatch.setattr(Crew, "_fork", kill_rank_1)
    with pytest.raises(RankDied, match="rank 1 did not start"):
        Cluster(2)


def test_a_rank_that_fails_at_its_start_says_why():
    with pytest.raises(RankDied, match="Unknown backend type nonsense"):
        Crew(Placement(("cpu", "cpu"), "nonsense"))


def test_after_a_start_that_failed_the_next_is_tried(monkeypatch):
    with Cluster(2) as cluster:
        cluster._crew.end()
        with monkeypatch.context() as patch:
            patch.setattr(Crew, "_fork", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                cluster.run(lambda: 1)
        assert cluster.run(lambda: 1).results == [1, 1]


@pytest.mark.parametrize("how", ["run", "step"])
def test_the_stop_button_while_arguments_are_sent(how, monkeypatch):
    with Cluster(2) as cluster:
        requests = cluster._crew.members[1].requests

        def half(request):
            requests._send(b"half")
            signal.raise_signal(signal.SIGINT)

        monkeypatch.setattr(requests, "_send_bytes", half)
        with pytest.raises(KeyboardInterrupt):
            getattr(cluster, how)(lambda: 1)
        assert cluster.run(lambda: 2).results == [2, 2]


def test_the_stop_button_while_ranks_start(monkeypatch):
    with Cluster(2) as cluster:
        cluster._crew.end()
        with monkeypatch.context() as patch:
            patch.setattr(Crew, "_take_in", lambda *_: signal.raise_signal(signal.SIGINT))
            with pytest.raises(KeyboardInterrupt):
                cluster.run(lambda: 1)
        assert cluster.run(lambda: 2).results == [2, 2]


# -- what cannot be sent ----------------------------------------------------------------------------------------


def test_a_result_that_cannot_be_pickled(cluster):
    with pytest.raises(RankError, match="returned a lock, which cannot be sent back"):
        cluster.run(lambda: threading.Lock())


def test_a_function_that_cannot_be_pickled(cluster):
    lock = threading.Lock()
    with pytest.raises(TypeError, match="it uses lock, a lock, which lives in this process alone"):
        cluster.run(lambda: lock.acquire())


def test_an_argument_that_cannot_be_pickled(cluster):
    with pytest.raises(TypeError, match="an argument of function cannot be sent"):

        def function(lock):
            return lock

        cluster.run(function, per_rank([threading.Lock()] * 4))


def test_per_rank_of_the_wrong_length(cluster):
    with pytest.raises(ValueError, match="holds 3 values for 4 ranks"):
        cluster.run(lambda x: x, per_rank([1, 2, 3]))


# -- prints -----------------------------------------------------------------------------------------------------


def test_a_million_printed_lines(cluster, capfd):
    def function():
        if dist.get_rank() == 1:
            for i in range(1_000_000):
                print("line", i)

    run = cluster.run(function)
    shown = capfd.readouterr().out
    assert shown.startswith("[rank 1] line 0\n")
    assert 100 < shown.count("\n") < 1000
    assert "999,800 more lines" in shown
    assert run.outputs[1].endswith("line 999999\n")


def test_prints_without_a_newline_and_from_below_python(cluster, capfd):
    def function():
        os.write(1, b"from C")
        print(" and", end="")
        sys.stderr.write(" stderr")

    cluster.run(function)
    assert "[rank 2] from C and stderr\n" in capfd.readouterr().out


# -- a message nobody receives ----------------------------------------------------------------------------------


def test_an_isend_that_nobody_receives_does_not_reach_the_next_run(cluster, capfd):
    def careless():
        if dist.get_rank() == 0:
            dist.isend(torch.full((1,), 666.0), 1)

    def careful():
        x = torch.full((1,), float(dist.get_rank()))
        if dist.get_rank() == 0:
            dist.send(x, 1)
        elif dist.get_rank() == 1:
            dist.recv(x, 0)
        return x.item()

    cluster.run(careless)
    assert "rank 0: send of float32 (1,) to rank 1" in capfd.readouterr().err
    assert cluster.run(careful).results == [0, 0, 2, 3]
