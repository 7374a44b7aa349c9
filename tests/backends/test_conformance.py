"""One behaviour on every backend: random programs of operations against a plain computation on one process."""

from __future__ import annotations

import os
import time

import programs
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from dtcourse import Cluster, RankError, per_rank
from dtcourse.backends.shared_memory import block

NAMES = list(programs.DO)
DTYPES = ["float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "int32", "int64", "bool"]
GLOO_DTYPES = ["float32", "float64", "int32", "int64"]


class Clusters:
    """Clusters of one backend, made when they are needed."""

    def __init__(self, backend):
        self.backend, self._made = backend, {}

    def __getitem__(self, world):
        if world not in self._made:
            os.environ["DTCOURSE_WINDOWS"] = "staged" if self.backend == "staged" else ""
            self._made[world] = Cluster(world, backend="gloo" if self.backend == "gloo" else "shared_memory")
        return self._made[world]

    def close(self):
        for cluster in self._made.values():
            cluster.close()


@pytest.fixture(scope="module", params=["direct", "staged"])
def ours(request):
    clusters = Clusters(request.param)
    yield clusters
    clusters.close()
    os.environ.pop("DTCOURSE_WINDOWS", None)


@pytest.fixture(scope="module")
def gloo():
    clusters = Clusters("gloo")
    yield clusters
    clusters.close()


@st.composite
def operations(draw, dtypes=DTYPES, names=NAMES, strides=(1, 2, 3), reductions=("SUM", "PRODUCT", "MIN", "MAX", "AVG")):
    dtype = draw(st.sampled_from(dtypes))
    allowed = [r for r in reductions if not (r == "AVG" and not dtype.startswith(("float", "bfloat")))]
    return {
        "name": draw(st.sampled_from(names)),
        "dtype": dtype,
        "size": draw(st.integers(0, 100)),
        "stride": draw(st.sampled_from(strides)),
        "reduction": draw(st.sampled_from(allowed)) if dtype != "bool" else "MAX",
        "root": draw(st.integers(0, 7)),
        "seed": draw(st.integers(0, 1000)),
        "uneven": draw(st.booleans()),
        "flight": draw(st.booleans()),
    }


def assert_plain(cluster, program, delays):
    world = cluster.world_size
    run = cluster.run(programs.run_program, program, delays)
    for rank, got in enumerate(run.results):
        for op, result in zip(program, got, strict=True):
            expected = programs.plain(op, rank, world)
            assert programs.same(result, expected), f"rank {rank} of {world}, {op}: {result} and not {expected}"


@settings(max_examples=120, deadline=None)
@given(
    world=st.integers(1, 8),
    program=st.lists(operations(), min_size=1, max_size=8),
    delays=st.none() | st.integers(0, 10),
)
def test_random_programs(ours, world, program, delays):
    assert_plain(ours[world], program, delays)


@settings(max_examples=30, deadline=None)
@given(
    world=st.sampled_from([1, 2, 3, 5]),
    program=st.lists(
        operations(
            GLOO_DTYPES,
            [n for n in NAMES if n not in ("all_to_all", "reduce_scatter", "several_in_flight")],
            strides=(1,),
            reductions=("SUM", "PRODUCT", "MIN", "MAX"),
        ).map(lambda op: op | {"uneven": False, "size": max(1, op["size"])}),
        min_size=1,
        max_size=5,
    ),
)
def test_random_programs_on_gloo_within_what_it_can_do(gloo, world, program):
    assert_plain(gloo[world], program, None)


@pytest.mark.parametrize("size", [30_000, 3_000_001])
@pytest.mark.parametrize("dtype", ["float32", "int16", "bfloat16"])
def test_tensors_that_take_many_pieces(ours, size, dtype):
    for name in ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "messages_round", "broadcast"):
        op = {
            "name": name,
            "dtype": dtype,
            "size": size,
            "stride": 1,
            "reduction": "SUM",
            "root": 1,
            "seed": 3,
            "uneven": True,
            "flight": False,
        }
        assert_plain(ours[3], [op], None)


GLOO_FAULTS = {
    "int16 sums": lambda: dist.all_reduce(torch.ones(3, dtype=torch.int16)),
    "strided tensors": lambda: dist.all_reduce(torch.ones(8)[::2]),
}


@pytest.mark.parametrize("fault", GLOO_FAULTS)
def test_what_gloo_refuses_and_we_do(ours, gloo, fault):
    with pytest.raises(RankError):
        gloo[2].run(GLOO_FAULTS[fault])
    ours[2].run(GLOO_FAULTS[fault])


def test_the_average_of_integers_is_refused(ours):
    with pytest.raises(RankError, match="the average of integers is no integer"):
        ours[2].run(lambda: dist.all_reduce(torch.ones(3, dtype=torch.int64), dist.ReduceOp.AVG))


def test_a_non_blocking_send_makes_progress_while_the_main_thread_computes(ours):
    def function():
        x = torch.arange(200_000.0)
        if dist.get_rank() == 0:
            work = dist.isend(x, 1)
            end = time.monotonic() + 1
            while time.monotonic() < end:  # nobody waits for the send
                sum(range(1000))
            done = time.monotonic()
            work.wait()
            return done
        dist.recv(x, 0)
        return time.monotonic()

    sent, received = ours[2].run(function).results
    assert received < sent


def test_a_non_blocking_receive_makes_progress_while_the_main_thread_computes(ours):
    def function():
        x = torch.zeros(200_000)
        if dist.get_rank() == 0:
            work = dist.irecv(x, 1)
            end = time.monotonic() + 1
            while time.monotonic() < end:
                sum(range(1000))
            done = time.monotonic()
            work.wait()
            return done
        dist.send(torch.ones(200_000), 0)
        return time.monotonic()

    computed, sent = ours[2].run(function).results
    assert sent < computed


def test_sends_whose_handle_is_thrown_away_arrive(ours):
    def function():
        if dist.get_rank() == 0:
            for i in range(300):
                dist.isend(torch.full((50,), float(i)), 1)
            dist.barrier()
            return None
        dist.barrier()
        x, got = torch.empty(50), []
        for _ in range(300):
            dist.recv(x, 0)
            got.append(x.clone())
        return all(torch.equal(g, torch.full((50,), float(i))) for i, g in enumerate(got))

    assert ours[2].run(function).results[1]


def test_an_asynchronous_collective_makes_progress_while_the_main_thread_computes(ours):
    def function():
        x = torch.ones(300_000)
        work = dist.all_reduce(x, async_op=True)
        time.sleep(0.5)
        return work.is_completed(), work.wait() and x[0].item()

    assert ours[2].run(function).results == [(True, 2.0)] * 2


def test_large_messages_between_all_pairs(ours):
    def function():
        rank, world = dist.get_rank(), dist.get_world_size()
        sends = [torch.full((100_000,), float(rank * 10 + to)) for to in range(world)]
        gets = [torch.empty(100_000) for _ in range(world)]
        works = [dist.irecv(gets[o], o) for o in range(world) if o != rank]
        works += [dist.isend(sends[o], o) for o in range(world) if o != rank]
        for work in works:
            work.wait()
        return all(
            torch.equal(gets[o], torch.full((100_000,), float(o * 10 + rank))) for o in range(world) if o != rank
        )

    assert ours[4].run(function).results == [True] * 4


def test_a_receive_may_be_polled_instead_of_waited_for(ours):
    def function(stride):
        x = torch.zeros(3 * stride)[::stride]
        if dist.get_rank() == 0:
            work = dist.irecv(x, 1)
            while not work.is_completed():
                pass
        else:
            dist.send(torch.ones(3), 0)
        return x.tolist()

    pids = ours[2].run(os.getpid).results
    for stride in (1, 2):
        run = ours[2].run(function, stride)
        assert run.results[0] == [1, 1, 1]
        assert not any(e.pending for e in run.events)
    assert ours[2].run(os.getpid).results == pids  # nothing was left over


@pytest.mark.parametrize("windows", ["direct", "staged"])
def test_nobody_sleeps_through_a_ring(windows, monkeypatch):
    """The main thread and the worker sleep at the same time, for an hour each: a ring has to wake the right one."""
    monkeypatch.setenv("DTCOURSE_WINDOWS", "staged" if windows == "staged" else "")

    def function():
        block._NAP_SPEC.seconds = 3600
        x = torch.zeros(1)
        for _ in range(40):
            dist.barrier()
            works = [dist.all_reduce(torch.ones(100), async_op=True) for _ in range(5)]
            if dist.get_rank() == 0:
                time.sleep(0.003)
                dist.send(x, 1)
            else:
                dist.recv(x, 0)
            for work in works:
                work.wait()

    with Cluster(2, backend="shared_memory", timeout=60) as cluster:
        cluster.run(function)


def test_all_ranks_have_the_same_sum_to_the_last_bit(ours):
    def function(x):
        dist.all_reduce(x)
        return x

    for size in (100, 100_000):
        generator = torch.Generator().manual_seed(size)
        tensors = [torch.randn(size, generator=generator) * 10**rank for rank in range(4)]
        results = ours[4].run(function, per_rank(tensors)).results
        assert all(torch.equal(result, results[0]) for result in results)


def test_handles_that_are_thrown_away_do_not_fill_the_mailbox(ours):
    def function():
        x = torch.zeros(1)
        for _ in range(1500):  # more than there are slots
            if dist.get_rank() == 0:
                dist.isend(x, 1)
                dist.recv(x, 1)
            else:
                dist.isend(x, 0)
                dist.recv(x, 0)

    assert ours[2].run(function).failure is None


def test_groups_that_are_over_leave_no_files(ours):
    def function():
        x = torch.ones(10_000)
        dist.all_reduce(x, group=dist.new_group([0, 1]))
        return x[0].item()

    def files_after(runs):
        for _ in range(runs):
            assert ours[2].run(function).results == [2, 2]
        return sum(len(files) for _, _, files in os.walk(ours[2]._crew.folder))

    assert files_after(3) == files_after(3)
