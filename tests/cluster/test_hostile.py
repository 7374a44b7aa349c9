"""What a function, a second press of the stop button, or the machine can do to a cluster; and the next run works."""

from __future__ import annotations

import os
import queue
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from dtcourse import Cluster, Deadlock, RankDied, RankError
from dtcourse.backends.tape import Files
from dtcourse.cluster.crew import Crew
from dtcourse.cluster.forkserver import ForkServer

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def cluster():
    with Cluster(2) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def the_next_run_works(cluster):
    yield
    assert cluster.run(lambda: print("here") or dist.get_rank()).results == [0, 1]
    assert cluster.last_run.outputs == ["here\n"] * 2


def press(*_):
    signal.raise_signal(signal.SIGINT)


# -- the stop button ------------------------------------------------------------------------------------------------


def test_the_stop_button_while_the_fork_server_is_asked(cluster, monkeypatch):
    from dtcourse.cluster import forkserver

    receive = forkserver._receive
    with monkeypatch.context() as patch:
        patch.setattr(forkserver, "_receive", lambda sock: press() or receive(sock))
        with pytest.raises(KeyboardInterrupt):
            cluster._crew.start()
    with Cluster(1) as other:  # they share the server
        assert other.run(lambda: 3).results == [3]


def test_the_stop_button_while_tapes_are_erased(cluster, monkeypatch):
    cluster.run(lambda: dist.barrier())
    with monkeypatch.context() as patch:
        erase = Files.erase

        def half(files):
            os.ftruncate(files.records, 0)
            press()
            erase(files)

        patch.setattr(Files, "erase", half)
        with pytest.raises(KeyboardInterrupt):
            cluster.run(lambda: 1)


def test_the_stop_button_in_the_middle_of_an_answer(cluster, monkeypatch):
    def function():
        return torch.zeros(10_000_000) if dist.get_rank() == 0 else time.sleep(60)

    answers = cluster._crew.members[0].answers
    read, sizes = os.read, []

    def half(fd, size):
        if fd == answers.fileno():
            sizes.append(size)
            if len(sizes) == 4:
                press()
        return read(fd, size)

    monkeypatch.setattr(answers, "_recv", lambda size, read=None: type(answers)._recv(answers, size, half))
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt, match="the run was stopped"):
        cluster.run(function)
    assert time.monotonic() - start < 4


def test_the_stop_button_while_a_live_run_finishes(cluster):
    live = cluster.step(lambda: time.sleep(60))
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        live.finish()
    assert live.done


# -- the fork server ------------------------------------------------------------------------------------------------


def test_ranks_that_are_ended_as_soon_as_they_are_born(monkeypatch):
    fork = Crew._fork

    def interrupted(crew, rank, meeting_place):
        crew.members.append(fork(crew, rank, meeting_place))
        raise ZeroDivisionError

    monkeypatch.setattr(Crew, "_fork", interrupted)
    for _ in range(50):
        with pytest.raises(ZeroDivisionError):
            Cluster(1)


def test_a_fork_server_that_has_died_unnoticed(cluster):
    os.kill(ForkServer.shared()._process.pid, signal.SIGKILL)
    with Cluster(1) as other:
        assert other.run(lambda: 3).results == [3]
    with pytest.raises(RankDied):
        cluster.run(lambda: 1)


@pytest.fixture
def server(tmp_path):
    """A fork server of its own, for the test's folder."""
    server = ForkServer()
    yield server
    server.close()


@pytest.mark.parametrize("loaded", [False, True])
def test_the_stop_button_while_a_fork_server_does_not_answer(server, tmp_path, loaded):
    if loaded:
        server.guard(str(tmp_path))
    os.kill(server._process.pid, signal.SIGSTOP)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        server.guard(str(tmp_path))
    os.kill(server._process.pid, signal.SIGCONT)
    if loaded:  # half a question may be left in the pipe: it is given up, and ends
        assert not server.alive() and server._process.wait() == 0
    else:  # nothing was asked yet
        assert server.guard(str(tmp_path)) is None


def test_in_a_process_with_thousands_of_open_files():
    script = """
        import os, resource
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 4096), most))
        files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
        from dtcourse import Cluster
        print(Cluster(2).run(lambda: 3).results)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    out = subprocess.run(command, cwd=REPOSITORY, capture_output=True, timeout=60)
    assert out.stdout == b"[3, 3]\n", out.stderr


def test_somebody_has_cleaned_the_folder_of_temporary_files(cluster):
    shutil.rmtree(cluster._crew.folder)
    cluster._crew.start()
    assert os.stat(cluster._crew.folder).st_mode & 0o777 == 0o700
    shutil.rmtree(cluster._crew.folder)  # and now between two runs
    assert cluster.run(lambda: dist.new_group([0, 1]).size()).results == [2, 2]


def test_nothing_is_imported_from_the_working_folder(tmp_path):
    for name in ("torch", "random"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not mine')")
    script = tmp_path / "elsewhere" / "script.py"
    script.parent.mkdir()
    script.write_text("from dtcourse import Cluster\nprint(Cluster(1).run(lambda: 3).results)")
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    out = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, env=environment, timeout=60)
    assert out.stdout == b"[3]\n", out.stderr


# -- what functions do ----------------------------------------------------------------------------------------------


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError


class NeedsTwo(Exception):
    def __init__(self, a, b):
        super().__init__(a)


def test_an_exception_that_cannot_be_printed(cluster):
    def function():
        raise Unspeakable

    with pytest.raises(RankError, match=r"Unspeakable: \(its __str__ raised RuntimeError\)"):
        cluster.run(function)


def test_a_result_that_cannot_be_unpacked(cluster):
    with pytest.raises(RankError, match="what rank 0 returned cannot be read back in this process"):
        cluster.run(lambda: NeedsTwo(1, 2))


def test_a_signal_without_a_name(cluster):
    with pytest.raises(RankDied, match="ended by signal 40"):
        cluster.run(lambda: os.kill(os.getpid(), 40))


@pytest.mark.parametrize(
    "function",
    [
        lambda: dist.destroy_process_group(),
        lambda: os.close(1),
        lambda: sys.stdout.close(),
        lambda: setattr(sys, "stdout", None),
        lambda: os.fork() and None,
    ],
)
def test_a_function_that_leaves_a_mess(cluster, function):
    cluster.run(function)


def test_a_group_of_the_same_name_in_the_next_run(cluster):
    def function():
        x = torch.ones(1)
        dist.all_reduce(x, group=dist.new_group([0, 1], use_local_synchronization=True))
        return x.item()

    for _ in range(3):
        assert cluster.run(function).results == [2, 2]


def test_a_child_that_never_stops_printing(cluster):
    script = "import os\nwhile True: os.write(1, b'y' * 4096)"

    def function():
        for _ in range(4):
            subprocess.Popen([sys.executable, "-c", script])

    start = time.monotonic()
    cluster.run(function)
    assert time.monotonic() - start < 10
    cluster._crew.start()


def idle_pool():
    pool = ThreadPoolExecutor(1)
    pool.submit(print)
    threading.Event().wait()


def test_a_message_that_another_thread_will_send(cluster):
    def function():
        rank, x = dist.get_rank(), torch.zeros(1)

        def send():
            time.sleep(0.5)
            dist.send(torch.ones(1), 1 - rank)

        thread = threading.Thread(target=send)
        thread.start()
        dist.recv(x, 1 - rank)
        thread.join()
        return x.item()

    assert cluster.run(function).results == [1, 1]


@pytest.mark.parametrize("sleep", [lambda: queue.Queue().get(), lambda: threading.Event().wait(), idle_pool])
def test_a_deadlock_beside_a_thread_that_sleeps(sleep):
    def function():
        threading.Thread(target=sleep, daemon=True).start()
        time.sleep(0.2)  # until it does
        dist.recv(torch.zeros(1), 1 - dist.get_rank())

    with Cluster(2, timeout=20) as cluster, pytest.raises(Deadlock):
        cluster.run(function)


def test_a_deadlock_of_threads_that_are_joined(cluster):
    def function():
        thread = threading.Thread(target=dist.recv, args=(torch.zeros(1), 1 - dist.get_rank()))
        thread.start()
        thread.join()

    with pytest.raises(Deadlock, match="ranks 0 and 1 wait for what will never come"):
        cluster.run(function)


def test_a_thread_that_is_woken_before_the_others_wait(cluster):
    def function():
        rank, x, orders = dist.get_rank(), torch.zeros(1), queue.Queue()

        def send():
            orders.get()
            time.sleep(0.5)
            dist.send(torch.ones(1), 1 - rank)

        thread = threading.Thread(target=send)
        thread.start()
        time.sleep(0.2)
        orders.put("now")
        dist.recv(x, 1 - rank)
        thread.join()
        return x.item()

    for _ in range(3):
        assert cluster.run(function).results == [1, 1]


def test_a_thread_that_goes_on_after_all_have_waited(cluster):
    """While it works, the main thread is no reason to take the rank for stuck: it may send what brings the end."""

    def function():
        x = torch.zeros(1)

        def answer():
            dist.recv(x, 1)
            time.sleep(0.4)
            dist.send(x + 1, 1)

        group = dist.new_group([0, 1])
        if dist.get_rank() == 0:
            thread = threading.Thread(target=answer)
            thread.start()
            last = torch.zeros(1)
            dist.recv(last, 1, group=group)
            thread.join()
            return last.item()
        time.sleep(0.3)  # by now both threads of rank 0 wait
        dist.send(torch.ones(1), 0)
        dist.recv(x, 0)
        dist.send(x + 1, 0, group=group)
        return x.item()

    assert cluster.run(function).results == [3, 2]


def test_a_deadlock_of_threads_for_which_the_main_threads_wait():
    def function():
        with ThreadPoolExecutor(1) as pool:
            pool.submit(dist.recv, torch.zeros(1), 1 - dist.get_rank()).result()  # here

    with Cluster(2, timeout=20) as cluster, pytest.raises(Deadlock) as caught:
        cluster.run(function)
    assert "for rank 1\n" in str(caught.value) and "# here" in str(caught.value)


def test_no_deadlock_of_threads_while_a_main_thread_works(cluster):
    """Both threads wait for each other's rank; main thread 0 sends after a while, to the other's main thread."""

    def function():
        rank, x, y = dist.get_rank(), torch.zeros(1), torch.zeros(1)
        group = dist.new_group([0, 1])
        with ThreadPoolExecutor(1) as pool:
            received = pool.submit(dist.recv, x, 1 - rank)
            if rank == 0:
                time.sleep(0.5)
                dist.send(torch.ones(1), 1, group=group)
            else:
                dist.recv(y, 0, group=group)
            dist.send(torch.full((1,), 2.0), 1 - rank)
            received.result()
        return x.item()

    assert cluster.run(function).results == [2, 2]


def test_lines_of_deprecated_functions_are_the_readers(cluster):
    def function():
        dist.all_gather_into_tensor(torch.zeros(2), torch.ones(1))

    assert {e.line.function for e in cluster.run(function).events} == {"function"}


def test_a_working_folder_that_is_gone(tmp_path, monkeypatch):
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    shutil.rmtree(folder)
    with Cluster(2) as cluster:
        cluster.run(lambda: dist.barrier())
        with pytest.raises(RankError, match="ZeroDivisionError"):
            cluster.run(lambda: 1 / 0)


# -- our own transport ----------------------------------------------------------------------------------------------


def test_inference_mode_reaches_the_worker(cluster):
    def function():
        with torch.inference_mode():
            x = torch.ones(3)
            dist.all_reduce(x, async_op=True).wait()
            return x.sum().item()

    assert cluster.run(function).results == [6, 6]


def test_thousands_of_messages_on_the_way(cluster):
    def function():
        if dist.get_rank() == 0:
            gets = [torch.zeros(1) for _ in range(1500)]
            for work in [dist.irecv(x, 1) for x in gets]:
                work.wait()
            return [x.item() for x in gets] == list(range(1500))
        time.sleep(0.5)
        for i in range(1500):
            dist.send(torch.tensor([float(i)]), 0)

    assert cluster.run(function).results[0] is True


def test_sends_whose_handles_nobody_keeps():
    def function():
        for _ in range(200):
            if dist.get_rank():
                dist.isend(torch.ones(1), 0)
            else:
                for other in range(1, 8):
                    dist.recv(torch.ones(1), other)
        dist.barrier()

    with Cluster(8) as cluster:
        cluster.run(function)


def test_a_group_is_destroyed_with_a_collective_pending(capfd):
    def function():
        group = dist.new_group([0, 1])
        if dist.get_rank() == 0:
            dist.all_reduce(torch.ones(1), group=group, async_op=True)  # and rank 1 never does
            dist.destroy_process_group(group)
        return "went on"

    with Cluster(2, timeout=20) as cluster:
        assert cluster.run(function).results == ["went on"] * 2
    assert "rank 0: all_reduce of float32 (1,)" in capfd.readouterr().err


@pytest.mark.parametrize("begin", [lambda x: dist.irecv(x, 1), lambda x: dist.all_reduce(x, async_op=True)])
def test_a_wait_with_a_limit(cluster, begin):
    def function():
        rank, x = dist.get_rank(), torch.zeros(1)
        group = dist.new_group([0, 1])  # of its own: a barrier comes after all collectives of its group
        if rank == 0:
            work = begin(x)
            with pytest.raises(RuntimeError, match=r"was not complete after 0\.4 s"):
                work.wait(timedelta(seconds=0.4))  # rank 1 waits meanwhile, and yet this is no deadlock
            dist.barrier(group)
            work.wait()
        else:
            dist.barrier(group)
            x += 1
            (dist.send(x, 0) if "irecv" in begin.__code__.co_names else dist.all_reduce(x))
        return x.item()

    assert cluster.run(function).results == [1, 1]


def test_a_refused_send_does_not_spoil_another(cluster):
    def function():
        x = torch.zeros(1)
        if dist.get_rank() == 1:
            dist.barrier()
            with pytest.raises(ValueError, match="does not fit"):
                dist.recv(torch.zeros(2))  # from any: the recorder cannot compare the two before
            dist.barrier()
            for _ in range(3000):
                dist.recv(x, tag=1)
            return None
        refused = dist.isend(x, 1)
        dist.barrier()
        dist.barrier()
        works = [dist.isend(x, 1, tag=1) for _ in range(3000)]  # more than fit: slots are given back
        for work in works:
            work.wait()
        with pytest.raises(ValueError, match="does not fit"):
            refused.wait()

    cluster.run(function)
    cluster._crew.start()  # the receive was begun and never ended


def test_a_part_that_is_too_long_is_refused(cluster):
    def function():
        rank = dist.get_rank()
        parts = [torch.ones(3), torch.ones(3 + (rank == 0))]
        dist.all_to_all([torch.zeros(3), torch.zeros(3)], parts if rank == 0 else [torch.ones(3), torch.ones(3)])

    with pytest.raises(RankError, match="brought 16 bytes where 12 were expected"):
        cluster.run(function)
