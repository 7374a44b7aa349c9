"""On real GPUs: the same conformance suite, the ring, the recorder, and lesson 04.

Ranks that share a GPU need one; NCCL takes as many ranks as there are GPUs, which may be one.
"""

from __future__ import annotations

import time
from pathlib import Path

import nbformat
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from nbclient import NotebookClient
from test_conformance import NAMES, assert_plain, operations

from dtcourse import Cluster, Deadlock, RankError, per_rank, provenance
from dtcourse.collectives.ring import ring_all_reduce
from dtcourse.events import region

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA GPU here")]
GPUS = torch.cuda.device_count()
LESSON = Path(__file__).parents[2] / "lessons" / "04_ring_all_reduce.ipynb"


@pytest.fixture(scope="module")
def shared():
    with Cluster(4, device="cuda", backend="shared_memory") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def nccl():
    with Cluster(min(GPUS, 4), device="cuda", backend="nccl") as cluster:
        yield cluster


@pytest.fixture(params=["shared", "nccl"])
def cluster(request):
    return request.getfixturevalue(request.param)


# -- conformance ----------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(program=st.lists(operations(), min_size=1, max_size=6), delays=st.none() | st.integers(0, 10))
def test_random_programs_on_shared_gpus(shared, program, delays):
    assert_plain(shared, program, delays)


ON_NCCL = [name for name in NAMES if name not in ("messages_round", "receive_from_any")]  # no tags, and none from any
NCCL_DTYPES = ["float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64"]


@settings(max_examples=60, deadline=None)
@given(
    program=st.lists(
        operations(NCCL_DTYPES, ON_NCCL, strides=(1,)).map(lambda op: op | {"uneven": False}), min_size=1, max_size=6
    ),
    delays=st.none() | st.integers(0, 10),
)
def test_random_programs_on_nccl(nccl, program, delays):
    assert_plain(nccl, program, delays)


def test_a_tensor_that_takes_many_pieces(shared):
    def function(x):
        dist.all_reduce(x)
        dist.broadcast(x, 1)
        return x

    tensors = [torch.randint(0, 9, (5_000_003,)) for _ in range(4)]
    assert all(torch.equal(r, sum(tensors)) for r in shared.run(function, per_rank(tensors)).results)


def test_asynchronous_collectives_come_after_what_the_stream_was_given(cluster):
    def function():
        x = torch.ones(2000, 2000)
        for _ in range(20):
            x = x @ x / 2000
        work = dist.all_reduce(x, async_op=True)
        work.wait()
        return x.mean().item()

    assert cluster.run(function).results == [float(cluster.world_size)] * cluster.world_size


# -- where tensors live ---------------------------------------------------------------------------------------------


def test_a_function_finds_and_makes_tensors_on_its_gpu_and_returns_them_from_there(cluster):
    def function(x, model):
        made = torch.zeros(3)
        on = {t.device.type for t in (x, made, model.weight, model(x))}
        return on, made, torch.nn.Parameter(x)

    x = torch.ones(3)
    for on, made, parameter in cluster.run(function, x, torch.nn.Linear(3, 3)).results:
        assert on == {"cuda"}
        assert made.device.type == "cpu" and torch.equal(parameter.data, x)


# -- the ring and the recorder --------------------------------------------------------------------------------------


def ring(x):
    ring_all_reduce(x)
    return x


def test_the_ring(cluster):
    world = cluster.world_size
    run = cluster.run(ring, per_rank([provenance(world, rank, 10) for rank in range(world)]), watch=True)
    expected = sum(provenance(world, rank, 10) for rank in range(world))
    assert all(torch.equal(result, expected) for result in run.results)
    assert len(run.messages()) == 2 * world * (world - 1)
    assert not any(event.pending for event in run.events)
    assert all(event.posted <= event.ended for event in run.events)


def test_regions_last_as_long_as_the_gpu_works(cluster):
    def function():
        x = torch.ones(4000, 4000)
        torch.cuda.synchronize()
        start = time.perf_counter()
        with region("multiply"):
            for _ in range(50):
                x = x @ x / 4000
        asked = time.perf_counter() - start
        torch.cuda.synchronize()
        return asked, time.perf_counter() - start

    run = cluster.run(function)
    for event, (asked, done) in zip(run.regions("multiply"), run.results, strict=True):
        lasted = (event.ended - event.posted) / 1e9
        assert asked < lasted <= done * 1.05


def test_stock_ddp(cluster):
    def function():
        torch.manual_seed(0)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(20, 3))
        model(torch.ones(4, 20) * dist.get_rank()).sum().backward()
        return model.module.weight.grad

    mean = 4 * sum(range(cluster.world_size)) / cluster.world_size
    for grad in cluster.run(function).results:
        torch.testing.assert_close(grad, torch.full((3, 20), mean))


# -- what goes wrong ------------------------------------------------------------------------------------------------


def waits_for_ever(big):
    x = torch.ones(big)
    if dist.get_rank() == 0:
        dist.recv(x, 1)


def free():
    return torch.cuda.mem_get_info()[0]


def test_a_hang_is_named_and_the_memory_is_free_again(shared):
    shared.run(lambda: None)
    before = free()
    with pytest.raises(Deadlock, match="rank 0 waits in recv of float32"):
        shared.run(waits_for_ever, 500_000_000)
    while free() < before - 500_000_000:  # two thousand million bytes a rank; the suite's own limit ends this
        time.sleep(0.1)
    assert shared.run(dist.get_rank).results == [0, 1, 2, 3]


@pytest.mark.skipif(GPUS < 2, reason="NCCL hangs with two ranks at least, and they need two GPUs")
def test_a_hang_on_nccl_is_named_where_the_host_waits(nccl):
    with pytest.raises(Deadlock, match="rank 0 waits in recv of float32"):
        nccl.run(waits_for_ever, 10)

    def later():
        x = torch.ones(3)
        if dist.get_rank() == 0:
            dist.all_reduce(x, async_op=True)
            x.sum().item()

    with pytest.raises(Deadlock, match="rank 0 waits in all_reduce"):
        nccl.run(later)


def test_nccl_is_strict(nccl):
    with pytest.raises(RankError, match="NCCL moves tensors of the rank's own device"):
        nccl.run(lambda: dist.all_reduce(torch.ones(3, device="cpu")))
    with pytest.raises(RankError, match="NCCL cannot receive from any"):
        nccl.run(lambda: dist.recv(torch.ones(3)))


def test_a_kernel_that_fails_costs_the_ranks_and_not_the_cluster(cluster):
    def function():
        torch.ones(3)[torch.tensor([7])].sum().item()

    with pytest.raises(RankError):
        cluster.run(function)
    assert cluster.run(lambda: torch.ones(3).sum().item()).results == [3.0] * cluster.world_size


# -- the lesson -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_lesson_04_runs_unchanged(monkeypatch, tmp_path):
    monkeypatch.delenv("DTCOURSE_DEVICE")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    lesson = nbformat.read(LESSON, as_version=4)
    NotebookClient(lesson, timeout=300, resources={"metadata": {"path": str(LESSON.parent)}}).execute()
    assert not [o for cell in lesson.cells for o in cell.get("outputs", ()) if o.output_type == "error"]
