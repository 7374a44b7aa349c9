"""Running functions on ranks: what travels, what comes back, what is shown, and what is left behind."""

from __future__ import annotations

import gc
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
import torch.distributed as dist

from dtcourse import Cluster, RankError, RunStopped, mark, per_rank, region

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def cluster():
    with Cluster(3) as cluster:
        yield cluster


def wait_until(condition, seconds=10.0):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


# -- what travels -----------------------------------------------------------------------------------------------


def test_closures_lambdas_and_redefinitions(cluster):
    factor = 10
    assert cluster.run(lambda: dist.get_rank() * factor).results == [0, 10, 20]

    def function():
        return "old"

    assert cluster.run(function).results == ["old"] * 3

    def function():
        return "new"

    assert cluster.run(function).results == ["new"] * 3


def test_arguments(cluster):
    run = cluster.run(lambda a, b, c=0: (a, b, c), 1, per_rank("xyz"), c=per_rank([7, 8, 9]))
    assert run.results == [(1, "x", 7), (1, "y", 8), (1, "z", 9)]


def test_results_keep_types_and_values(cluster):
    x = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
    result = cluster.run(lambda: {"x": x, "n": np.float32(2), "none": None}).results[2]
    assert torch.equal(result["x"], x) and result["n"] == 2 and result["none"] is None


def test_an_edited_module_takes_effect(cluster, tmp_path, monkeypatch):
    import importlib

    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "readers_module.py"
    file.write_text("def answer():\n    return 1\n")
    import readers_module

    assert cluster.run(readers_module.answer).results == [1, 1, 1]
    file.write_text("def answer():\n    return helper()\n\ndef helper():\n    return 22\n")
    importlib.reload(readers_module)
    assert cluster.run(lambda: readers_module.answer()).results == [22, 22, 22]


def test_module_like_objects_of_torch(cluster):
    assert (
        cluster.run(lambda: torch.backends.mkldnn.is_available()).results == [torch.backends.mkldnn.is_available()] * 3
    )


def test_ranks_are_kept(cluster):
    assert cluster.run(os.getpid).results == cluster.run(os.getpid).results == [m.pid for m in cluster._crew.members]


def test_a_big_argument_and_a_big_result(cluster):
    x = torch.arange(5_000_000)
    assert all(torch.equal(r, x + 1) for r in cluster.run(lambda t: t + 1, x).results)


@pytest.mark.parametrize("world", [0, -1, 65, 2.5, "4"])
def test_a_world_that_cannot_be(world):
    with pytest.raises(ValueError, match="1 to 64 ranks"):
        Cluster(world)


def test_other_bad_arguments():
    with pytest.raises(ValueError, match="device"):
        Cluster(2, device="tpu")
    with pytest.raises(ValueError, match="backend"):
        Cluster(2, backend="mpi")
    with pytest.raises(ValueError, match="timeout"):
        Cluster(2, timeout=0)


# -- what is shown ----------------------------------------------------------------------------------------------


def test_prints_come_as_they_happen(cluster, capfd):
    cluster.run(lambda: print("hello") or print("world"))
    assert sorted(capfd.readouterr().out.splitlines()) == sorted(
        f"[rank {r}] {word}" for r in range(3) for word in ("hello", "world")
    )


def test_repr():
    cluster = Cluster(2)
    assert re.search(r"rank 1  cpu  shared_memory \((process_vm_readv|shared files)\)  pid \d+", repr(cluster))
    assert cluster._repr_html_().count("<tr>") == 3
    cluster.close()
    assert "closed" in repr(cluster) and "closed" in cluster._repr_html_()
    with pytest.raises(RuntimeError, match="closed"):
        cluster.run(lambda: 1)


def test_errors_in_a_notebook_are_short(cluster):
    with pytest.raises(RankError) as error:
        cluster.run(lambda: {}["missing"])
    (shown,) = error.value._render_traceback_()
    assert shown.startswith("RankError: rank 0 raised KeyError: 'missing'")
    assert "supervise" not in shown


# -- the record -------------------------------------------------------------------------------------------------


def test_regions_and_marks(cluster):
    def function():
        for step in range(2):
            with region("step", step=step), region("compute"):
                mark("loss", value=0.5)
                dist.barrier()

    run = cluster.run(function)
    assert [e.labels for e in run.regions("step", rank=1)] == [{"step": 0}, {"step": 1}]
    assert [e.labels for e in run.marks("loss", rank=2)] == [{"step": 0, "value": 0.5}, {"step": 1, "value": 0.5}]
    barriers = [e for e in run.events if e.op == "barrier" and e.rank == 0]
    assert [e.labels for e in barriers] == [{"step": 0}, {"step": 1}] and all(e.control for e in barriers)
    inner, outer = run.regions("compute", 0)[0], run.regions("step", 0)[0]
    assert outer.posted <= inner.posted <= inner.ended <= outer.ended


def test_a_mark_may_hold_a_tensor_of_one_element_and_says_what_it_may_not(cluster):
    run = cluster.run(lambda: mark("loss", value=torch.tensor(0.5, requires_grad=True), other=np.float32(2)))
    assert run.marks("loss", rank=0)[0].labels == {"value": 0.5, "other": 2.0}
    with pytest.raises(RankError, match="region and mark keep numbers and strings, and this is a set"):
        cluster.run(lambda: mark("loss", value={1}))


def test_regions_and_marks_do_nothing_outside_a_run():
    with region("forward"):
        mark("loss", value=1)


def test_lines_are_the_readers(cluster):
    def function():
        x = torch.zeros(1)
        dist.all_reduce(x)  # this line

    line = cluster.run(function).events[0].line
    assert (line.file, line.function) == ("tests/cluster/test_cluster.py", "function")
    assert "# this line" in Path(__file__).read_text().splitlines()[line.number - 1]


def test_steps_count_the_messages_on_the_way(cluster):
    def relay():
        rank, x = dist.get_rank(), torch.zeros(1)
        if rank > 0:
            dist.recv(x, rank - 1)
        if rank < 2:
            dist.send(x, rank + 1)

    run = cluster.run(relay)
    assert sorted((e.rank, e.step) for e in run.messages()) == [(0, 1), (1, 2)]
    assert sorted((e.rank, e.step) for e in run.receives()) == [(1, 1), (2, 2)]


def test_the_record_of_a_failed_run_is_kept(cluster):
    def function(x):
        dist.all_reduce(x)
        if dist.get_rank() == 1:
            raise ValueError("later")

    with pytest.raises(RankError) as error:
        cluster.run(function, torch.ones(2), watch=True)
    assert error.value.run is cluster.last_run
    assert len(error.value.run.events) >= 3 and error.value.run.failure.startswith("RankError: rank 1 raised")


# -- stepping ---------------------------------------------------------------------------------------------------


def relay(x):
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank > 0:
        dist.recv(x, rank - 1)
    if rank < world - 1:
        dist.send(x, rank + 1)
    return rank


def test_ranks_stand_still_until_they_may_go_on(cluster):
    live = cluster.step(relay, torch.zeros(1))
    assert wait_until(lambda: live._supervisor.watch.held() == {0: 1})
    assert live.run.messages() == [] and not live.done
    changes = []
    live.on_change(lambda: changes.append(1))
    live.advance()
    assert wait_until(lambda: live._supervisor.watch.held() == {1: 2})
    assert [(e.rank, e.step) for e in live.run.messages()] == [(0, 1)]
    assert live.finish().results == [0, 1, 2]
    assert changes and live.done
    assert cluster.run(lambda: 1).results == [1, 1, 1]


def test_held_ranks_are_not_late_and_not_in_a_deadlock():
    with Cluster(3, timeout=0.5) as cluster:
        live = cluster.step(relay, torch.zeros(1))
        time.sleep(1.2)
        assert not live.done
        assert live.finish().results == [0, 1, 2]


def test_a_live_run_can_be_stopped(cluster):
    live = cluster.step(relay, torch.zeros(1))
    live.stop()
    assert live.done and isinstance(live.error, KeyboardInterrupt)
    assert cluster.run(lambda: 2).results == [2, 2, 2]


def test_the_next_run_ends_a_live_run_that_is_held(cluster, capfd):
    live = cluster.step(relay, torch.zeros(1))
    assert cluster.run(lambda: 4).results == [4, 4, 4]
    assert live.done and "still held before step 1; it is stopped" in capfd.readouterr().err


def test_a_live_run_that_fails_says_so(cluster):
    live = cluster.step(lambda: dist.recv(torch.zeros(1), (dist.get_rank() + 1) % 3))
    with pytest.raises(Exception, match="wait for what will never come"):
        live.finish()


# -- what is left behind ----------------------------------------------------------------------------------------


def children_of(pid):
    return psutil.Process(pid).children(recursive=True)


def test_thirty_clusters_at_once():
    clusters = [Cluster(2) for _ in range(30)]
    assert all(c.run(dist.get_rank).results == [0, 1] for c in clusters)
    pids = [m.pid for c in clusters for m in c._crew.members]
    folders = [c._crew.folder for c in clusters]
    assert all((os.stat(f).st_mode & 0o777) == 0o700 for f in folders)
    for c in clusters:
        c.close()
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert not any(os.path.exists(folder) for folder in folders)


@pytest.mark.parametrize("at", [lambda: time.sleep(60), dist.barrier])
def test_a_cluster_is_closed_during_a_run(at):
    cluster = Cluster(2)
    pids = [m.pid for m in cluster._crew.members]

    def close():
        while cluster._supervisor is None:  # the run has not begun
            time.sleep(0.01)
        time.sleep(0.5)
        cluster.close()

    threading.Thread(target=close).start()
    with pytest.raises(RunStopped, match="the cluster was closed during the run") as error:
        cluster.run(lambda: print("here", flush=True) or at() if dist.get_rank() else time.sleep(60))
    assert error.value.run.outputs[1] == "here\n"
    assert wait_until(lambda: not any(psutil.pid_exists(pid) for pid in pids))
    with pytest.raises(RuntimeError, match="this cluster is closed"):
        cluster.run(lambda: 1)


def test_a_cluster_is_closed_during_a_stepped_run():
    with Cluster(2) as cluster:
        live = cluster.step(relay, torch.zeros(1))
    with pytest.raises(RunStopped, match="the cluster was closed during the run"):
        live.finish()


def test_a_cluster_that_is_forgotten_ends():
    pids = [m.pid for m in Cluster(2)._crew.members]
    assert wait_until(lambda: not any(psutil.pid_exists(pid) for pid in pids))


def test_many_runs_leave_nothing(cluster):
    def function():
        group = dist.new_group([0, 1])
        if dist.get_rank() < 2:
            dist.all_reduce(torch.ones(1), group=group)

    cluster.run(function)
    process = psutil.Process()
    before = process.num_fds(), [psutil.Process(m.pid).num_fds() for m in cluster._crew.members]
    for _ in range(50):
        cluster.run(function)
    assert process.num_fds() <= before[0]
    after = [psutil.Process(m.pid).num_fds() for m in cluster._crew.members]
    assert all(b <= a for a, b in zip(before[1], after, strict=True))


def test_a_thousand_runs_grow_by_nothing(cluster):
    def function(x):
        dist.all_reduce(x)
        if dist.get_rank() == 0:
            dist.send(x, 1)
        elif dist.get_rank() == 1:
            dist.recv(x, 0)

    def objects():
        gc.collect()
        return len(gc.get_objects())

    def all_objects():
        return [objects(), *cluster.run(objects).results]

    x = torch.ones(1000)
    for _ in range(100):
        cluster.run(function, x)
    before, files = all_objects(), psutil.Process().num_fds()
    for _ in range(1000):
        cluster.run(function, x)
    assert all(b - a < 200 for a, b in zip(before, all_objects(), strict=True))
    assert psutil.Process().num_fds() <= files


def script(text: str, **kwargs):
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(text)], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, **kwargs
    )


def test_before_the_first_cluster_the_fork_server_loads_what_optimizers_need():
    text = """
    import sys, time
    from dtcourse import Cluster

    while True:  # until the pause was long enough
        time.sleep(1)
        with Cluster(1) as cluster:
            if cluster.run(lambda: "torch._dynamo" in sys.modules).results[0]:
                print("loaded")
                break
        time.sleep(2)
    """
    with script(text) as process:
        assert process.stdout.read() == "loaded\n"


def test_an_unguarded_script_works(tmp_path):
    file = tmp_path / "script.py"
    file.write_text(
        "import torch, torch.distributed as dist\nfrom dtcourse import Cluster\n"
        "def f(x):\n    dist.all_reduce(x)\n    return x.item()\n"
        "print('started')\nprint(Cluster(2).run(f, torch.ones(1)).results)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    out = subprocess.run([sys.executable, file], capture_output=True, text=True, env=environment, timeout=60)
    assert out.stdout.splitlines() == ["started", "[2.0, 2.0]"], out.stderr


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_when_the_readers_process_is_killed_nothing_is_left(how):
    process = script(
        """
        import time, subprocess
        from dtcourse import Cluster
        def function():
            subprocess.Popen(["sleep", "1000"])
        c = Cluster(3)
        c.run(function)
        print(c._crew.folder, flush=True)
        c.run(lambda: time.sleep(1000))
        """
    )
    folder = process.stdout.readline().strip()
    time.sleep(0.3)
    family = children_of(process.pid)
    assert len(family) == 1 + 3 + 3  # fork server, ranks, and what the ranks started
    process.send_signal(how)
    process.wait()
    assert wait_until(lambda: not any(p.is_running() and p.status() != "zombie" for p in family), 5)
    assert wait_until(lambda: not os.path.exists(folder), 5)


def test_nothing_listens_beyond_loopback(cluster):
    def listening(cluster):
        cluster.run(lambda: dist.all_reduce(torch.ones(1)))
        family = [p for m in cluster._crew.members for p in [psutil.Process(m.pid)]] + [psutil.Process()]
        return {c.laddr.ip for p in family for c in p.net_connections() if c.status == psutil.CONN_LISTEN}

    assert listening(cluster) == set()
    with Cluster(2, backend="gloo") as over_sockets:
        assert listening(over_sockets) <= {"127.0.0.1", "::1"}


def test_a_fork_of_the_readers_process_leaves_the_ranks_alone():
    out = script(
        """
        import os, sys
        from dtcourse import Cluster
        c = Cluster(2)
        if os.fork() == 0:
            sys.exit()
        os.wait()
        print(c.run(lambda: 1).results)
        """
    )
    assert out.communicate(timeout=60)[0] == "[1, 1]\n"
