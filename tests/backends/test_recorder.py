"""The recorder: whatever runs on a process group runs through it unchanged, and what it writes down is true."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.distributed as dist
from torch import nn

from dtcourse import Cluster, Link, RankError, mark
from dtcourse.backends import deaths
from dtcourse.backends.recording import Recording
from dtcourse.backends.tape import Files, anonymous_file


@pytest.fixture(scope="module", params=["gloo", "shared_memory", "gloo on a link", "shared_memory on a link"])
def cluster(request):
    backend, _, on_a_link = request.param.partition(" ")
    with Cluster(4, backend=backend, link=Link("1 GB/s", "100 us") if on_a_link else None) as cluster:
        yield cluster


def every_collective():
    rank, world = dist.get_rank(), dist.get_world_size()
    x = torch.full((4,), float(rank))
    got = {}

    def copy():
        return x.clone()

    y = copy()
    dist.all_reduce(y)
    got["all_reduce"] = y
    y = copy()
    dist.all_reduce(y, op=dist.ReduceOp.MAX)
    got["max"] = y
    y = copy()
    dist.broadcast(y, 2)
    got["broadcast"] = y
    y = copy()
    dist.reduce(y, 1)
    got["reduce"] = y if rank == 1 else None
    ys = [torch.empty(4) for _ in range(world)]
    dist.all_gather(ys, x)
    got["all_gather"] = torch.stack(ys)
    y = torch.empty(4 * world)
    dist.all_gather_into_tensor(y, x)
    got["all_gather_into_tensor"] = y
    ys = [torch.empty(4) for _ in range(world)] if rank == 3 else None
    dist.gather(x, ys, dst=3)
    got["gather"] = torch.stack(ys) if ys else None
    y = torch.empty(4)
    dist.scatter(y, [torch.full((4,), float(10 * r)) for r in range(world)] if rank == 0 else None, src=0)
    got["scatter"] = y
    y = torch.empty(1)
    dist.reduce_scatter_tensor(y, x)
    got["reduce_scatter_tensor"] = y
    y = torch.empty(4)
    dist.all_to_all_single(y, torch.arange(4.0) + 10 * rank)
    got["all_to_all_single"] = y
    objects = [None] * world
    dist.all_gather_object(objects, {"rank": rank})
    got["all_gather_object"] = objects
    thing = [rank]
    dist.broadcast_object_list(thing, 3)
    got["broadcast_object_list"] = thing
    dist.barrier()
    return got


def test_every_collective_gives_what_it_should(cluster):
    run = cluster.run(every_collective)
    every = torch.stack([torch.full((4,), float(r)) for r in range(4)])
    for rank, got in enumerate(run.results):
        assert torch.equal(got["all_reduce"], torch.full((4,), 6.0))
        assert torch.equal(got["max"], torch.full((4,), 3.0))
        assert torch.equal(got["broadcast"], torch.full((4,), 2.0))
        assert torch.equal(got["all_gather"], every)
        assert torch.equal(got["all_gather_into_tensor"], every.flatten())
        assert torch.equal(got["scatter"], torch.full((4,), 10.0 * rank))
        assert torch.equal(got["reduce_scatter_tensor"], torch.tensor([6.0]))
        assert torch.equal(got["all_to_all_single"], torch.arange(4.0) * 10 + rank)
        assert got["all_gather_object"] == [{"rank": r} for r in range(4)]
        assert got["broadcast_object_list"] == [3]
    assert torch.equal(run.results[1]["reduce"], torch.full((4,), 6.0))
    assert torch.equal(run.results[3]["gather"], every)


def test_what_is_written_down_of_collectives(cluster):
    run = cluster.run(every_collective)
    mine = [e for e in run.events if e.rank == 1]
    assert [e.op for e in mine if not e.control] == [
        "all_reduce", "all_reduce", "broadcast", "reduce", "all_gather", "all_gather", "gather", "scatter",
        "reduce_scatter", "all_to_all",
    ]  # fmt: skip
    assert [e.sequence for e in mine] == list(range(len(mine)))
    assert {e.op: e.peer for e in mine if e.peer is not None and not e.control} == {
        "broadcast": 2, "reduce": 1, "gather": 3, "scatter": 0,
    }  # fmt: skip
    assert all(e.posted <= e.started <= e.ended for e in mine)
    assert mine[0].bytes == 16 and mine[0].shape == (4,) and mine[0].dtype == "float32"
    assert {e.op for e in mine if e.control} == {"all_gather", "broadcast", "barrier"}


def test_subgroups(cluster):
    def function():
        rank = dist.get_rank()
        odd = dist.new_group([1, 3])
        x = torch.tensor([float(rank)])
        if rank in (1, 3):
            dist.all_reduce(x, group=odd)
            if rank == 3:
                dist.send(x, 1, group=odd)
            else:
                dist.recv(x, 3, group=odd)
        return x.item(), dist.get_backend(odd) if rank in (1, 3) else None

    run = cluster.run(function)
    assert run.results == [(0, None), (4, cluster.backend), (2, None), (4, cluster.backend)]
    assert {e.group for e in run.events} == {(1, 3)}
    made = [e for e in run.events if e.op == "new_group([1, 3])"]
    assert sorted(e.rank for e in made) == [0, 1, 2, 3] and all(e.control and e.ended for e in made)
    assert {e.rank for e in made if e.wait_from} == {1, 3}  # the others need not wait
    assert [(e.rank, e.peer) for e in run.messages()] == [(3, 1)]


def test_a_group_of_a_named_backend_is_recorded_too(cluster):
    def function():
        dist.all_reduce(torch.ones(2), group=dist.new_group(backend="gloo"))

    assert len([e for e in cluster.run(function).events if not e.control]) == 4


def test_stock_ddp(cluster):
    def function():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)).double()
        parallel = nn.parallel.DistributedDataParallel(model)
        torch.manual_seed(1)
        x, y = torch.randn(8, 8).double(), torch.randn(8, 2).double()
        share = slice(2 * dist.get_rank(), 2 * dist.get_rank() + 2)
        nn.functional.mse_loss(parallel(x[share]), y[share]).backward()
        ours = [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        return all(torch.allclose(a, p.grad) for a, p in zip(ours, model.parameters(), strict=True))

    run = cluster.run(function)
    assert run.results == [True] * 4
    reduced = [e for e in run.events if e.op == "all_reduce" and e.rank == 0 and not e.control]
    assert sum(e.bytes for e in reduced) >= 8 * (8 * 16 + 16 + 16 * 2 + 2)
    assert all(e.ended for e in reduced)  # although DDP never waits for them


def test_stock_fsdp2(cluster):
    def function():
        from torch.distributed.fsdp import fully_shard

        def make():
            torch.manual_seed(0)
            return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)).double()

        torch.manual_seed(1)
        x, y = torch.randn(8, 8).double(), torch.randn(8, 2).double()
        share = slice(2 * dist.get_rank(), 2 * dist.get_rank() + 2)
        plain, model = make(), make()
        fully_shard(model, mesh=dist.init_device_mesh("cpu", (dist.get_world_size(),)))
        nn.functional.mse_loss(model(x[share]), y[share]).backward()
        nn.functional.mse_loss(plain(x), y).backward()
        pairs = zip(model.parameters(), plain.parameters(), strict=True)
        return all(torch.allclose(p.grad.full_tensor(), q.grad) for p, q in pairs)

    run = cluster.run(function)
    assert run.results == [True] * 4
    assert {"all_gather", "reduce_scatter"} <= {e.op for e in run.events}


def test_device_mesh_and_functional_collectives(cluster):
    def function():
        mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))
        x = torch.tensor([float(dist.get_rank())])
        dist.all_reduce(x, group=mesh.get_group("inner"))
        return x.item()

    assert cluster.run(function).results == [1, 1, 5, 5]


def test_stock_pipelining():
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    def function():
        rank = dist.get_rank()
        torch.manual_seed(rank)
        layer = nn.Linear(4, 4)
        stage = PipelineStage(layer, rank, 2, torch.device("cpu"))
        schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
        torch.manual_seed(9)
        x, y = torch.randn(8, 4), torch.randn(8, 4)
        if rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=y)
        return layer.weight.grad.abs().sum().item() > 0

    with Cluster(2) as cluster:
        run = cluster.run(function)
    assert run.results == [True, True]
    assert len([e for e in run.messages() if e.rank == 0]) >= 4


def test_receive_from_any_knows_whom_it_heard(cluster):
    def function():
        rank, x = dist.get_rank(), torch.zeros(1)
        if rank == 0:
            return [dist.recv(x, tag=5) for _ in range(3)]
        dist.send(x, 0, tag=5)

    run = cluster.run(function)
    heard = run.results[0]
    assert sorted(heard) == [1, 2, 3]
    assert [e.peer for e in run.receives(0)] == heard
    assert all(e.tag == 5 for e in run.receives(0))


def test_tags_keep_messages_apart(cluster):
    def function():
        rank = dist.get_rank()
        a, b = torch.tensor([1.0]), torch.tensor([2.0, 2.0])
        if rank == 0:
            for work in [dist.isend(a, 1, tag=1), dist.isend(b, 1, tag=2)]:
                work.wait()
        elif rank == 1:
            dist.recv(b, 0, tag=2)
            dist.recv(a, 0, tag=1)

    run = cluster.run(function)
    assert {(e.tag, e.bytes) for e in run.receives(1)} == {(1, 4), (2, 8)}


def test_a_strided_tensor_is_refused_where_the_library_would_be_wrong(cluster):
    if cluster.backend != "gloo":
        assert cluster.run(lambda: dist.all_reduce(torch.ones(4, 4).t()[1:])).failure is None
        return
    with pytest.raises(RankError, match=r"not contiguous gives wrong values on gloo: pass tensor\.contiguous\(\)"):
        cluster.run(lambda: dist.all_reduce(torch.ones(4, 4).t()[1:]))


def test_a_watched_run_keeps_payloads_and_arguments(cluster):
    def function(x):
        rank = dist.get_rank()
        if rank == 0:
            dist.send(x[:2], 1)
        elif rank == 1:
            dist.recv(x[:2], 0)

    run = cluster.run(function, torch.tensor([1, 2, 3]), watch=True)
    assert torch.equal(run.messages(0)[0].payload, torch.tensor([1, 2]))
    assert torch.equal(run.receives(1)[0].payload, torch.tensor([1, 2]))
    assert torch.equal(run.messages(0)[0].arguments[0], torch.tensor([1, 2, 3]))
    assert [e.kind for e in run.events if e.rank == 3] == ["return"]


def test_unwatched_runs_keep_no_payload(cluster):
    run = cluster.run(lambda x: dist.all_reduce(x), torch.ones(2))
    assert all(e.payload is None and e.arguments == () for e in run.events)


def test_many_events(cluster):
    def function():
        x = torch.zeros(1)
        rank = dist.get_rank()
        for _ in range(2000):
            if rank == 0:
                dist.send(x, 1)
            elif rank == 1:
                dist.recv(x, 0)

    run = cluster.run(function)
    assert len(run.events) == 4000
    assert [e.sequence for e in run.receives(1)] == list(range(2000))


def test_marks_and_their_errors_have_the_line_that_marks(cluster):
    def function(value):
        mark("loss", value=value)

    line = cluster.run(function, 1.0).marks("loss")[0].line
    assert line.file.endswith("test_recorder.py") and line.function == "function"
    with pytest.raises(RankError) as caught:
        cluster.run(function, torch.ones(2))
    assert 'mark("loss", value=value)' in str(caught.value).splitlines()[1]


def test_threads_of_a_rank_write_into_one_record():
    def function():
        def work(number):
            for i in range(200):
                mark("at", value=f"{number} {i}")
                x = torch.full((number + 1,), float(i))
                if dist.get_rank() == 0:
                    dist.send(x, 1, tag=number)
                else:
                    dist.recv(x, 0, tag=number)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    with Cluster(2) as cluster:
        run = cluster.run(function, watch=True)
    assert len({e.labels["value"] for e in run.marks("at", 0)}) == 600
    assert all(e.payload.numel() == e.tag + 1 for e in run.messages() + run.receives())


def test_a_batch_is_that_of_one_thread():
    tapes, gate, seen = [Files.create()], anonymous_file(), []
    deaths.clear(gate)
    recording = Recording(0, tapes, gate, strict=True, device=torch.device("cpu"))
    recording.thread.batched = True
    thread = threading.Thread(target=lambda: seen.append(recording.thread.batched))
    thread.start()
    thread.join()
    assert seen == [False] and recording.thread.batched
