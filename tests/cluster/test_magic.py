"""`%%ranks`, in a real IPython shell."""

from __future__ import annotations

import pytest
from IPython.testing.globalipapp import start_ipython

from dtcourse import Cluster, RankDied, RankError
from dtcourse.cluster.magic import load_ipython_extension


@pytest.fixture(scope="module")
def shell():
    shell = start_ipython()
    load_ipython_extension(shell)
    with Cluster(2) as cluster:
        shell.user_ns["cluster"] = cluster
        yield shell


def test_a_cell_runs_on_every_rank(shell, capfd):
    shell.run_cell_magic("ranks", "", "x = torch.ones(2) * rank\ndist.all_reduce(x)\nx")
    assert sorted(capfd.readouterr().out.splitlines()) == [f"[rank {r}] tensor([1., 1.])" for r in range(2)]


def test_a_cell_without_a_notebook(shell):
    cluster = shell.user_ns["cluster"]
    assert Cluster.latest() is cluster
    run = cluster.run_cell("import torch\nx = rank + 40\nx")
    assert run is cluster.last_run and run.outputs == ["40\n", "41\n"]


def test_the_namespace_stays(shell, capfd):
    shell.run_cell_magic("ranks", "cluster", "y = rank + 5\ngroup = dist.new_group([0, 1])")
    shell.run_cell_magic("ranks", "cluster", "z = torch.tensor(y)\ndist.all_reduce(z, group=group)\nprint(int(z))")
    assert sorted(capfd.readouterr().out.splitlines()) == ["[rank 0] 11", "[rank 1] 11"]


def test_a_mistake_names_the_line_and_loses_nothing(shell, capfd):
    shell.run_cell_magic("ranks", "", "kept = 1")
    with pytest.raises(RankError, match=r"NameError: name 'missing'.*\n  at ranks cell \d+, line 2:  missing \+ 1"):
        shell.run_cell_magic("ranks", "", "a = 1\nmissing + 1")
    shell.run_cell_magic("ranks", "", "kept")
    assert "[rank 0] 1" in capfd.readouterr().out


def test_lost_variables_are_told(shell, capfd):
    shell.run_cell_magic("ranks", "", "kept = 1")
    with pytest.raises(RankDied):
        shell.run_cell_magic("ranks", "", "import os\nos._exit(1)")
    assert "the variables of %%ranks cells are gone" in capfd.readouterr().err
    with pytest.raises(RankError, match="name 'kept' is not defined") as error:
        shell.run_cell_magic("ranks", "", "kept")
    assert "magic.py" not in str(error.value)


def test_without_a_cluster_of_that_name(shell):
    with pytest.raises(ValueError, match="needs a Cluster: nobody"):
        shell.run_cell_magic("ranks", "nobody", "1")
