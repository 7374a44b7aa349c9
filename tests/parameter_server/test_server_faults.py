"""What goes wrong: models that differ, ranks in the wrong role, deaths, and what a checkpoint is worth after one."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from jobs import merged, name_of, plain, same, small_model, train

from dtcourse import RankDied, RankError
from dtcourse.parameter_server.checkpoint import Checkpoint
from dtcourse.parameter_server.policies import Asynchronous, BackupWorkers, BoundedStaleness, Synchronous
from dtcourse.parameter_server.server import serve
from dtcourse.parameter_server.shards import assign
from dtcourse.parameter_server.worker import Worker

SIZES = [12] * 12


def differing(models, servers=1, catch=False):
    """`models`: what each rank builds its model with."""
    make = models[dist.get_rank()]
    model = make()
    if dist.get_rank() < servers:
        return serve(model, torch.optim.SGD, Asynchronous(), servers=servers, lr=0.1)
    try:
        worker = Worker(model, servers=servers)
    except ValueError as problem:
        if catch:
            return str(problem)
        raise
    for _ in range(3):
        worker.pull()
        sum(p.sum() for p in model.parameters()).backward()
        worker.push(samples=1)
    return worker.finish()


OTHERS = {
    "0.weight is float64 (8, 6) there, 0.weight is float64 (7, 6) here": partial(small_model, hidden=7),
    "0.weight is float64 (8, 6) there, 0.weight is float32 (8, 6) here": lambda: small_model().float(),
    "the model has 5 parameter tensors here, 4 there": lambda: torch.nn.Sequential(
        *small_model(), torch.nn.PReLU(dtype=torch.double)
    ),
}


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("says", OTHERS)
def test_a_worker_whose_model_differs_is_told_on_its_own_line(cluster, says, servers):
    models = [small_model] * (servers + 1) + [OTHERS[says]]
    with pytest.raises(RankError) as caught:
        cluster(servers + 2).run(differing, models, servers)
    assert says in str(caught.value) and caught.value.rank == servers + 1
    assert "worker = Worker(model, servers=servers)" in str(caught.value).splitlines()[1]
    run = cluster(servers + 2).run(differing, models, servers, catch=True)  # and the others are not held up
    assert says in run.results[-1]
    assert len(run.marks("update", 0)) == 3


def test_other_numbers_of_servers_are_noticed(cluster):
    def job():
        if dist.get_rank() < 2:
            return serve(small_model(), torch.optim.SGD, Synchronous(), servers=2, lr=0.1)
        return Worker(small_model(), servers=1 if dist.get_rank() == 2 else 2).finish()

    with pytest.raises(RankError, match="servers=1 here, servers=2 there"):
        cluster(4).run(job)


def test_roles_that_do_not_fit_are_refused(cluster):
    def says(match, job):
        with pytest.raises(RankError, match=match):
            cluster(3).run(job)

    says("with servers=1 .* rank 1 works", lambda: serve(small_model(), torch.optim.SGD, Synchronous(), lr=0.1))
    says("with servers=1 .* rank 0 serves", lambda: Worker(small_model()))
    says("at least one has to work", lambda: serve(small_model(), torch.optim.SGD, Synchronous(), servers=3, lr=0.1))
    tiny = lambda: torch.nn.Linear(2, 2, bias=False)  # noqa: E731
    says("2 servers share 1 parameter tensors", lambda: serve(tiny(), torch.optim.SGD, Synchronous(), servers=2)
         if dist.get_rank() < 2 else Worker(tiny(), servers=2))  # fmt: skip
    says("no parameters to train", lambda: Worker(torch.nn.Tanh()) if dist.get_rank() else None)


def push(worker, model):
    sum(p.sum() for p in model.parameters()).backward()
    worker.push(samples=1)


MISUSES = {
    "no pull": ("pull\\(\\) since the last push", lambda worker, model: worker.push(samples=1)),
    "no gradient": ("call loss.backward", lambda worker, model: (worker.pull(), worker.push(samples=1))),
    "no samples": ("samples=0", lambda worker, model: (worker.pull(), worker.push(samples=0))),
    "half a sample": ("samples=2.5: .* whole number", lambda worker, model: (worker.pull(), worker.push(samples=2.5))),
    "another worker": ("keep one Worker", lambda worker, model: (worker.pull(), push(worker, model), Worker(model))),
    "too late": ("finished", lambda worker, model: (worker.finish(), worker.pull())),
}


@pytest.mark.parametrize("name", MISUSES)
def test_misuse_is_named(cluster, name):
    says, misuse = MISUSES[name]

    def job():
        if dist.get_rank() == 0:
            return serve(small_model(), torch.optim.SGD, Synchronous(), lr=0.1)
        model = small_model()
        return misuse(Worker(model), model)

    with pytest.raises(RankError, match=says):
        cluster(2).run(job)


MADE_WRONG = {
    "optimizer": ("torch.optim.SGD, ...", lambda model: (torch.optim.SGD(model.parameters(), lr=0.1), Synchronous())),
    "policy": (r"Synchronous\(...\), not the class", lambda model: (torch.optim.SGD, Synchronous)),
    "checkpoint": (r"Checkpoint\(folder", lambda model: (torch.optim.SGD, Synchronous(), "folder")),
}


@pytest.mark.parametrize("name", MADE_WRONG)
def test_what_a_server_is_given_has_to_be_made_or_not(cluster, name):
    says, made = MADE_WRONG[name]

    def job():
        if dist.get_rank() == 0:
            model = small_model()
            optimizer, policy, *checkpoint = made(model)
            return serve(model, optimizer, policy, checkpoint=checkpoint[0] if checkpoint else None, lr=0.1)

    with pytest.raises(RankError, match=says):
        cluster(2).run(job)


def test_a_training_begun_before_all_have_ended_the_one_before_is_named(cluster):
    def job(meet):
        for _ in range(2):
            if dist.get_rank() < 2:  # the worker on rank 2 does nothing, and is at the second training at once
                train(Asynchronous(), 1, SIZES[:3], pause=lambda rank, step: 0.1)
            else:
                Worker(small_model()).finish()
            if meet:
                dist.barrier()

    with pytest.raises(RankError, match=r"worker 2 has finished, and begins another .*\(1\).*dist.barrier"):
        cluster(3).run(job, meet=False)
    assert len(cluster(3).run(job, meet=True).marks("update")) == 6


@pytest.mark.parametrize(("servers", "workers"), [(1, 7), (2, 4), (3, 2)])
@pytest.mark.parametrize("policy", [Synchronous(), Asynchronous(), BoundedStaleness(0)], ids=name_of)
def test_a_clean_end(cluster, servers, workers, policy):
    run = cluster(servers + workers).run(train, policy, servers, SIZES[:3])
    assert run.failure is None and not any(e.pending for e in run.events)
    assert len(run.marks("update")) == servers * workers * 3


def test_nan_gradients_are_not_our_business(cluster):
    def job():
        model = small_model()
        if dist.get_rank() == 0:
            return serve(model, torch.optim.SGD, Asynchronous(), lr=0.1)
        worker = Worker(model)
        worker.pull()
        (model(torch.ones(1, 6).double()).sum() * float("nan")).backward()
        worker.push(samples=1)
        return worker.finish()

    assert cluster(2).run(job).results[0]["0.bias"].isnan().all()


def test_the_same_job_in_plain_processes(tmp_path):
    """As torchrun starts them, but over a file and loopback."""
    script = Path(__file__).with_name("without_a_cluster.py")
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo"}
    command = [sys.executable, script]
    ranks = [subprocess.Popen([*command, str(r), tmp_path / "store"], env=environment) for r in range(3)]
    assert [rank.wait() for rank in ranks] == [0, 0, 0]


# -- checkpoints -------------------------------------------------------------------------------------------------------

MOMENTUM = {"lr": 0.1, "momentum": 0.9}
decay = partial(torch.optim.lr_scheduler.StepLR, step_size=5, gamma=0.5)


class DiesAt(Synchronous):
    """Takes its server with it as the update that makes `version` is due."""

    def __init__(self, rank, version):
        self.rank, self.version = rank, version

    def ready(self, now):
        if super().ready(now) and (dist.get_rank(), now.version + 1) == (self.rank, self.version):
            os._exit(1)
        return super().ready(now)


@pytest.mark.parametrize("servers", [1, 2])
def test_after_the_death_of_a_server_the_training_resumes_on_the_same_curve(cluster, servers, tmp_path):
    checkpoint = Checkpoint(tmp_path / "new", every=2)
    job = partial(train, servers=servers, sizes=SIZES, schedule=decay, checkpoint=checkpoint, **MOMENTUM)
    with pytest.raises(RankDied) as caught:
        cluster(servers + 2).run(job, DiesAt(servers - 1, 8))
    assert caught.value.rank == servers - 1
    assert checkpoint.versions(servers - 1) == {4, 6}  # the last two, and no half-written file
    assert {stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "new").iterdir()} == {0o600}
    assert all(p.name.startswith("server") for p in (tmp_path / "new").iterdir())
    run = cluster(servers + 2).run(job, Synchronous())
    expected, losses = plain(SIZES, schedule=decay, **MOMENTUM)
    got = merged(run, servers)
    assert same({name: got[name] for name in expected}, expected)
    values = [
        sum(e.labels["value"] for e in run.marks("loss") if e.labels["step"] == step) / 2 for step in range(6, 12)
    ]
    assert values == pytest.approx(losses[6:], abs=1e-12)
    assert {e.labels["step"] for e in run.marks("loss")} == set(range(6, 12))


def test_a_checkpoint_of_another_model_is_refused(cluster, tmp_path):
    checkpoint = Checkpoint(tmp_path, every=1)
    cluster(2).run(train, Synchronous(), 1, SIZES[:2], checkpoint=checkpoint)
    models = [partial(small_model, hidden=5)] * 2

    def job():
        model = models[0]()
        if dist.get_rank() == 0:
            serve(model, torch.optim.SGD, Synchronous(), checkpoint=checkpoint, lr=0.1)

    with pytest.raises(RankError, match="the checkpoint of another model .*0.weight"):
        cluster(2).run(job)


def test_a_checkpoint_of_another_optimizer_or_other_servers_is_refused(cluster, tmp_path):
    two = Checkpoint(tmp_path / "two", every=1)
    one = Checkpoint(tmp_path / "one", every=1)
    for servers, checkpoint in ((1, one), (2, two)):
        cluster(3).run(train, Synchronous(), servers, SIZES[:2], checkpoint=checkpoint)
    before = sorted(tmp_path.rglob("*.pt"))
    with pytest.raises(RankError, match="was saved with SGD, not Adam"):
        cluster(3).run(train, Synchronous(), 1, SIZES, checkpoint=one, optimizer=torch.optim.Adam)
    with pytest.raises(RankError, match="no version that all of 2 servers have saved"):
        cluster(3).run(train, Synchronous(), 2, SIZES, checkpoint=one)
    with pytest.raises(RankError, match="servers=1 here, servers=2 there"):
        cluster(3).run(train, Synchronous(), 1, SIZES, checkpoint=two)
    assert sorted(tmp_path.rglob("*.pt")) == before


BROKEN = {"empty": b"", "garbage": b"garbage", "half": b"PK\x03\x04 the beginning of a zip"}


@pytest.mark.parametrize("name", [*BROKEN, "foreign"])
def test_a_file_that_is_no_checkpoint_is_named(tmp_path, name):
    path = tmp_path / "server0-7.pt"
    torch.save(small_model().state_dict(), path) if name == "foreign" else path.write_bytes(BROKEN[name])
    with pytest.raises(ValueError, match=r"server0-7.pt (is no checkpoint|cannot be read).*empty folder"):
        Checkpoint(tmp_path).load(0, 1)


@pytest.mark.parametrize("every", [0, -1, 1.5])
def test_a_checkpoint_is_saved_after_whole_numbers_of_updates(tmp_path, every):
    with pytest.raises(ValueError, match=f"every={every}"):
        Checkpoint(tmp_path, every)


def test_a_version_that_all_servers_have_outlives_one_that_runs_ahead(tmp_path):
    """Asynchronous servers may be as many updates apart as there are workers."""
    checkpoint = Checkpoint(tmp_path, every=1)
    save = lambda server, version: checkpoint.save({"layout": "", "at": version}, server, version, servers=2)  # noqa: E731
    for server, last in ((1, 3), (0, 9)):
        for version in range(1, last + 1):
            save(server, version)
    assert [checkpoint.load(server, 2)["at"] for server in range(2)] == [3, 3]
    assert max(checkpoint.versions(0)) == 3  # or, after another death, old parts could meet new ones
    save(0, 4), save(1, 4), save(0, 5), save(1, 5)
    assert checkpoint.versions(0) == checkpoint.versions(1) == {4, 5}


# -- shards ------------------------------------------------------------------------------------------------------------


def test_shards_are_balanced_by_bytes():
    assert assign([4, 3, 3, 2, 2, 2], 2) == [[0, 3, 4], [1, 2, 5]]
    assert assign([5, 1, 1, 1], 2) == [[0], [1, 2, 3]]
    assert assign([0, 0, 0], 3) == [[0], [1], [2]]
    with pytest.raises(ValueError, match="3 servers share 2 parameter tensors"):
        assign([1, 2], 3)


DEATHS = [Synchronous(), Asynchronous(), BoundedStaleness(1), BackupWorkers(2)]


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("policy", DEATHS, ids=name_of)
def test_a_dead_worker_ends_its_share_and_not_the_training(cluster, policy, servers):
    dead = servers + 2
    run = cluster(servers + 3).run(train, policy, servers, SIZES, dies=(dead, 4), may_die={dead})
    for server in range(servers):
        assert [e.labels["worker"] for e in run.marks("lost", server)] == [dead]
        steps = {
            w: sum(e.labels["worker"] == w for e in run.marks("update", server)) for w in (dead - 2, dead - 1, dead)
        }
        assert steps[dead] <= 4
        if not isinstance(policy, BackupWorkers):
            assert list(steps.values())[:2] == [len(SIZES)] * 2
    assert run.results[-2] is not None


def test_too_many_deaths_end_the_training(cluster):
    with pytest.raises(RankError, match="rank 3 has died, and BackupWorkers cannot go on with 2 workers"):
        cluster(4).run(train, BackupWorkers(3), 1, SIZES, dies=(3, 2), may_die={3})
    with pytest.raises(RankError, match="rank 1 has died, and Asynchronous cannot go on with 0 workers"):
        cluster(2).run(train, Asynchronous(), 1, SIZES, dies=(1, 2), may_die={1})


@pytest.mark.parametrize("policy", [Asynchronous(), BackupWorkers(2)], ids=name_of)
def test_the_death_of_the_last_one_at_work_leaves_what_the_others_did(cluster, policy):
    def job():
        if dist.get_rank() == 3:
            Worker(small_model()).pull()
            for other in (1, 2):
                dist.recv(torch.empty(1), other)  # it has finished
            os._exit(1)
        trained = train(policy, 1, SIZES[:2])
        if dist.get_rank() > 0:
            dist.send(torch.empty(1), 3)
        return trained

    run = cluster(4).run(job, may_die={3})
    assert run.results[0] and run.dead == [3]
    assert [e.labels["worker"] for e in run.marks("lost")] == [3]


def test_without_a_server_the_workers_are_told(cluster):
    with pytest.raises(RankError, match="server 0 is gone.*checkpoint"):
        cluster(3).run(train, DiesAt(0, 3), 1, SIZES, may_die={0})
