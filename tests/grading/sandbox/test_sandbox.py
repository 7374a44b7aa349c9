"""The sandbox: the relay records what a recorder would, the jail holds, and what goes wrong is told as in a check."""

import os
import random
import re
import subprocess
import sysconfig
import venv
from pathlib import Path

import pytest
import torch

from dtcourse import per_rank, provenance
from dtcourse.events import COLLECTIVE, MARK, RECV, REGION, RETURN, SEND
from dtcourse.grading.findings import CheckFailed
from dtcourse.grading.sandbox.clusters import SandboxedClusters
from dtcourse.grading.sandbox.keeper import Keeper
from dtcourse.grading.submission import Clusters, Submission

ROOT = Path(__file__).parents[3]
PROGRAMS = Path(__file__).parents[2] / "backends" / "programs.py"
WORLD = 3


@pytest.fixture(scope="module")
def jailed():
    with SandboxedClusters(timeout=5.0) as clusters:
        yield clusters


@pytest.fixture(scope="module")
def plain():
    with Clusters(timeout=5.0) as clusters:
        yield clusters


@pytest.fixture
def submit(tmp_path, jailed):
    def submit(source, clusters=jailed, name="answer.py"):
        (tmp_path / name).write_text(source)
        return Submission(tmp_path / name, clusters)

    return submit


# -- the same as a recorder writes -------------------------------------------------------------------------------------


def programs():
    """A program of each operation, in several shapes and kinds."""
    import sys

    sys.path.insert(0, str(PROGRAMS.parent))
    import programs

    chance = random.Random(0)
    for name in programs.DO:
        yield [
            {
                "name": name, "dtype": dtype, "size": size, "stride": chance.choice((1, 2)), "reduction": reduction,
                "root": chance.randrange(WORLD), "seed": chance.randrange(100), "uneven": chance.random() < 0.5,
                "flight": chance.random() < 0.5,
            }
            for dtype, size, reduction in (
                ("float32", 5, "SUM"), ("int64", 7, "MAX"), ("bfloat16", 1, "AVG"), ("uint8", 3, "PRODUCT"),
                ("bool", 4, "MAX"), ("float64", 0, "MIN"),
            )
        ]  # fmt: skip


def told(event):
    """An event without its times and its file."""
    of_the_file = event.line and event.line.file.endswith(".py")
    place = (event.line.number, event.line.function) if of_the_file else None
    # a recorder keeps what stands where the share will go, the relay what is scattered
    payload = event.payload.tolist() if event.payload is not None and event.op != "scatter" else None
    return (
        event.index, event.kind, event.op, event.group, event.sequence, event.peer, event.tag, event.bytes, event.dtype,
        event.shape, event.step, event.control, event.pending, event.labels, place, payload,
        [argument.tolist() for argument in event.arguments],
    )  # fmt: skip


def of_rank(run, rank):
    return [told(e) for e in run.events if e.rank == rank]


@pytest.mark.parametrize("program", [pytest.param(p, id=p[0]["name"]) for p in programs()])
def test_programs_give_what_they_should_and_are_written_down_alike(program, jailed, plain):
    import programs

    runs = [Submission(PROGRAMS, c).run("run_program", program, None, world=WORLD) for c in (jailed, plain)]
    for rank in range(WORLD):
        for op, got in zip(program, runs[0].results[rank], strict=True):
            assert programs.same(got, programs.plain(op, rank, WORLD)), op
        if program[0]["name"] != "receive_from_any":  # whom it hears is chance
            assert of_rank(runs[0], rank) == of_rank(runs[1], rank)


def around(f, x, **group):
    return f(x, **group)


SHARED = """
import torch, torch.distributed as dist
from dtcourse import mark, region
def f(x, group=None):
    with region("work", part=3):
        mark("loss", value=torch.tensor(2.0), of="all")
        dist.all_reduce(x, group=group)
    with region("control"):
        if dist.get_rank(group) == 0:
            dist.send(x, group_dst=1, group=group)
        elif dist.get_rank(group) == 1:
            dist.recv(x, group_src=0, group=group)
    objects = [None] * dist.get_world_size(group)
    dist.all_gather_object(objects, {"rank": dist.get_rank()}, group=group)
    return objects, x, slice(1, None), {2: (3, None)}
"""


def test_groups_regions_marks_and_objects(submit, jailed, plain):
    given = per_rank([torch.arange(4) + rank for rank in range(4)])
    both = [submit(SHARED, clusters) for clusters in (jailed, plain)]
    ours, theirs = (one.run("f", given, world=4, group=(0, 1, 3), around=around) for one in both)
    assert repr(ours.results) == repr(theirs.results)
    for rank in range(4):
        assert of_rank(ours, rank) == of_rank(theirs, rank)
    assert {e.kind for e in ours.events} == {SEND, RECV, COLLECTIVE, REGION, MARK, RETURN}


def test_what_a_rank_was_given_is_known_whatever_it_says(submit):
    run = submit("def f(x):\n    x.resize_(0)\n").run("f", per_rank([provenance(2, r, 3) for r in range(2)]), world=2)
    assert [given[0].tolist() for given in run.given] == [provenance(2, r, 3).tolist() for r in range(2)]


DDP = """
import torch
from torch import nn
def f(batch):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)).double()
    parallel, (x, y) = nn.parallel.DistributedDataParallel(model), batch
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.5)
    nn.functional.mse_loss(parallel(x), y).backward()
    optimizer.step()
    return [p.detach() for p in model.parameters()]
"""


def test_stock_ddp_and_an_optimizer(submit, jailed, plain):
    chance = torch.Generator().manual_seed(1)
    batches = [tuple(torch.randn(4, n, dtype=torch.float64, generator=chance) for n in (8, 2)) for _ in range(2)]
    ours, theirs = (submit(DDP, clusters).run("f", per_rank(batches), world=2) for clusters in (jailed, plain))
    assert all(torch.allclose(a, b) for a, b in zip(ours.results[1], theirs.results[0], strict=True))
    assert {e.op for e in ours.events} >= {"all_reduce"} and all(e.ended for e in ours.events)


def test_no_algorithm_of_the_course_is_in_a_jail():
    rooms = ("collectives", "parameter_server", "data_parallel", "model_parallel", "grading.best_cuts")
    hidden = tuple(f"dtcourse.{room}" for room in (*rooms, "pipeline.schedules", "pipeline.partition"))
    assert [module for module in Keeper.shared().modules if module.startswith(hidden)] == []


def test_what_nobody_waited_for_never_arrives(submit):
    source = """
import time, torch, torch.distributed as dist
def f(x):
    other = 1 - dist.get_rank()
    works = [dist.isend(torch.ones(3), other), dist.irecv(x, other)]
    works[0].wait()
    time.sleep(0.05)
    return x.tolist()
"""
    run = submit(source).run("f", torch.zeros(3), world=2)
    assert run.results == [[0, 0, 0]] * 2 and all(e.pending for e in run.receives())


def test_the_seed_decides_who_is_heard_first(tmp_path):
    (tmp_path / "answer.py").write_text("""
import torch, torch.distributed as dist
def f(x):
    if dist.get_rank():
        dist.send(x, 0)
    else:
        return [dist.recv(x) for _ in range(dist.get_world_size() - 1)]
""")
    heard = set()
    for seed in (1, 2, 3, 4, 5, 6):
        with SandboxedClusters(seed=seed) as clusters:
            submission = Submission(tmp_path / "answer.py", clusters)
            heard |= {tuple(submission.run("f", torch.zeros(1), world=4).results[0]) for _ in range(2)}
    assert len(heard) > 1 and all(sorted(order) == [1, 2, 3] for order in heard)


# -- the jail ----------------------------------------------------------------------------------------------------------


def test_all_is_well_on_this_machine(jailed):
    if os.uname().sysname != "Linux":
        pytest.skip("a jail is a jail on Linux alone")
    assert jailed.weaknesses == []


IN_TMP = """
from pathlib import Path
from dtcourse.grading.sandbox.clusters import SandboxedClusters
from dtcourse.grading.submission import Submission
with SandboxedClusters() as clusters:
    run = Submission(Path("answer.py"), clusters).run("answer", world=1)
    print(clusters.weaknesses, *run.results)
"""


def test_a_course_whose_python_lies_in_tmp_is_confined_as_well(tmp_path):
    assert Path("/tmp") in tmp_path.parents or not Path("/tmp").is_dir(), "this test is about /tmp"
    venv.create(tmp_path / "venv")
    packages = sysconfig.get_path("purelib", vars={"base": str(tmp_path / "venv")})
    Path(packages, "ours.pth").write_text("\n".join([str(ROOT), sysconfig.get_path("purelib")]))
    (tmp_path / "answer.py").write_text("import os\n\ndef answer():\n    return os.listdir('/tmp'), os.getpid()\n")
    told = subprocess.run(
        [tmp_path / "venv" / "bin" / "python", "-c", IN_TMP], cwd=tmp_path, capture_output=True, text=True
    )
    seen = str(tmp_path.relative_to("/tmp")).split("/")[0]
    assert told.stdout.startswith("[] ([") and f"'{seen}'" in told.stdout, told.stdout + told.stderr


TRIES = {
    "the course": f"open({str(PROGRAMS)!r})",
    "its solutions": f"__import__('os').listdir({str(PROGRAMS.parents[2] / 'solutions')!r})",
    "other processes": "[p for p in __import__('os').listdir('/proc') if p.isdigit()] or 1 / 0",
    "the network": "__import__('socket').create_connection(('127.0.0.1', 22), 1)",
    "a socket": "__import__('socket').socket()",
    "a process": "__import__('os').fork()",
    "a program": "__import__('subprocess').run(['true'])",
    "a file beside its own": "open(__file__ + 'x', 'w')",
    "shared memory": "__import__('multiprocessing.shared_memory').shared_memory.SharedMemory(create=True, size=8)",
    "a large file": "open('/tmp/x', 'wb').write(bytes(1 << 28)) and __import__('os').sync()",
    "too much memory": "bytearray(1 << 33)",
    "to be root": "__import__('os').setuid(0)",
    "another root": "__import__('os').chroot('/tmp')",
    "the course's ring": "__import__('dtcourse.collectives.ring')",
    "the course's clusters": "__import__('dtcourse').Cluster",
}


@pytest.mark.parametrize("what", TRIES)
def test_a_jail_keeps_it_from(what, submit):
    trying = f"try:\n        {TRIES[what]}\n    except BaseException as problem:\n        return repr(problem)"
    (said,) = submit(f"def f(x):\n    {trying}\n").run("f", torch.zeros(1), world=1).results
    assert said is not None, f"it got {what}"


def test_the_environment_of_the_grader_is_not_there(submit, monkeypatch):
    monkeypatch.setenv("TOKEN", "secret")
    (found,) = submit("import os\ndef f(x):\n    return dict(os.environ)\n").run("f", torch.zeros(1), world=1).results
    assert "secret" not in found.values()


def test_no_rank_serves_two_submissions(submit):
    count = "builtins.left = getattr(builtins, 'left', 0) + 1"
    source = f"import builtins\ndef f(x):\n    {count}\n    return builtins.left\n"
    submission = submit(source)
    assert [submission.run("f", torch.zeros(1), world=1).results for _ in range(2)] == [[1], [2]]
    assert submit(source, name="other.py").run("f", torch.zeros(1), world=1).results == [1]


def test_the_course_says_why_its_own_is_not_there(submit):
    submission = submit("from dtcourse.collectives.ring import ring_all_reduce as f\n")
    with pytest.raises(CheckFailed, match=r"dtcourse.collectives is not there when an exercise is graded: write it"):
        submission.run("f", torch.zeros(1), world=1)


# -- what goes wrong is told as in a check -----------------------------------------------------------------------------

BEGIN = """import os, signal, time, torch, torch.distributed as dist
def f(x):
    me = dist.get_rank()
    time.sleep(me / 5)
    """
WRONG = {
    "an exception": "dist.barrier() or x[7]",
    "an exit": "dist.barrier() or exit(3)",
    "a deadlock": "dist.recv(x, 1 - me)",
    "a deadlock of sends": "dist.send(x, 1 - me)",
    "one has returned": "dist.recv(x, 1) if me == 0 else None",
    "a size": "dist.send(x, 1) if me == 0 else dist.recv(x[:2], 0)",
    "a dtype": "dist.send(x, 1) if me == 0 else dist.recv(x.int(), 0)",
    "a size from anybody": "try:\\n        dist.send(x, 0) if me else dist.recv(x[:2])\\n    except ValueError:\\n"
    "        if not me:\\n            raise",  # or each of them may be the first to be told of
    "an operation": "dist.all_reduce(x) if me else dist.broadcast(x, 0)",
    "a shape": "dist.all_reduce(x[:me + 1])",
    "a root": "dist.broadcast(x, me)",
    "a group": "dist.new_group([0]) if me else dist.new_group([1])",
    "a rank that is not there": "dist.barrier() or (dist.send(x, 2) if me == 0 else None)",
    "a death": "os._exit(3) if me else dist.recv(x, 1)",
    "a death by a signal": "os.kill(os.getpid(), signal.SIGKILL) if me else time.sleep(5)",
    "a crash": "__import__('ctypes').string_at(8) if me else time.sleep(5)",
    "an average of integers": "dist.barrier() or dist.all_reduce(x.int(), dist.ReduceOp.AVG)",
}


def said(submission):
    with pytest.raises(CheckFailed) as caught:
        submission.run("f", torch.arange(3.0), world=2)
    return str(caught.value)


@pytest.mark.parametrize("what", WRONG)
def test_told_in_the_words_of_a_check(what, submit, plain):
    source = BEGIN + WRONG[what] + "\n"
    assert said(submit(source)) == said(submit(source, plain))


def test_a_result_that_is_no_plain_data_is_told(submit):
    source = "class Sum:\n    def __reduce__(self):\n        return print, ('run',)\ndef f(x):\n    return [Sum()]\n"
    assert "the function returned a list, which cannot be sent back (a Sum). Return " in said(submit(source))


def test_a_loop_without_end_is_told_with_its_line(submit):
    submission = submit("def f(x):\n    while True:\n        pass\n")
    assert re.search(r"had not finished after 5 s.\n  rank 0 is at .*answer.py, line [23], in f:", said(submission))


def test_a_flood_of_words_is_told(submit):
    assert "printed more than 16 MB: is there an endless loop?" in said(
        submit("def f(x):\n    while True: print('x' * 9999)\n")
    )


def test_the_words_of_a_rank_are_kept(submit):
    run = submit("import sys\ndef f(x):\n    print('out')\n    print('err', file=sys.stderr)\n").run("f", 1, world=1)
    assert run.outputs == ["out\nerr\n"]


def test_lines_are_those_of_the_submission(submit, tmp_path):
    run = submit("import torch.distributed as dist\ndef f(x):\n    dist.all_reduce(x)\n").run(
        "f", torch.zeros(1), world=1
    )
    line = run.events[0].line
    assert line.file.endswith("answer.py") and run.source_line(line) == "dist.all_reduce(x)"
    assert set(run.sources) == {line.file}


def test_after_each_of_them_the_next_run_works(submit):
    submission = submit("import os\ndef f(x):\n    os._exit(1)\ndef g(x):\n    return 5\n")
    said(submission)
    assert submission.run("g", torch.zeros(1), world=3).results == [5, 5, 5]
