"""What can be wrong with a reader's file is said in words, and the file never gets into this process."""

import re
import sys

import pytest
import torch
import torch.distributed as dist

from dtcourse import per_rank
from dtcourse.grading.findings import CheckFailed, NotWritten
from dtcourse.grading.submission import Clusters, Submission


@pytest.fixture(scope="module")
def clusters():
    with Clusters(timeout=2.0) as clusters:
        yield clusters


@pytest.fixture
def submit(tmp_path, clusters):
    def submit(source, name="answer.py"):
        (tmp_path / name).write_text(source)
        return Submission(tmp_path / name, clusters)

    return submit


def said(submission, function="f", world=1):
    """How the call fails."""
    with pytest.raises(CheckFailed) as caught:
        submission.run(function, torch.zeros(3), world=world)
    return str(caught.value)


def test_a_run_comes_back_and_the_module_does_not(submit):
    submission = submit("import torch\ndef f(x):\n    x += 1\n    return float(x.sum())\n", "never_here.py")
    run = submission.run("f", per_rank([torch.zeros(2), torch.ones(2)]), world=2)
    assert (run.results, run.function) == ([2.0, 4.0], "f")
    assert "never_here" not in sys.modules


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def f(x):\n    return (\n", r"answer.py cannot be imported: line 2 is not Python \('\(' was never closed\)"),
        ("import torch\nimport nowhere\n", r"cannot be imported: line 2 \(import nowhere\) raised ModuleNotFoundError"),
        ("x = 1 / 0\n", r"cannot be imported: line 1 \(x = 1 / 0\) raised ZeroDivisionError: division by zero"),
        ("raise SystemExit(0)\n", r"cannot be imported: line 1 .* raised SystemExit"),
        ("import os\nos._exit(0)\n", r"cannot be imported: .*rank 0 exited with code 0"),
        ("def g(x):\n    pass\n", r"answer.py has no function f"),
        ("f = 3\n", r"answer.py has no function f"),
        ("def f(x):\n    raise ValueError('no')\n", r"f on 1 rank, 3 elements each: rank 0 raised ValueError: no"),
        ("def f():\n    pass\n", r"raised TypeError: f\(\) takes 0 positional arguments"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(submit, source, message):
    assert re.search(message, said(submit(source)))


def test_a_missing_file_is_said(tmp_path, clusters):
    assert "there is no such file in" in said(Submission(tmp_path / "ring.py", clusters))


def test_a_stub_is_not_written_yet(submit):
    submission = submit('def f(x):\n    raise NotImplementedError("not written yet: f")\n')
    with pytest.raises(NotWritten, match="^not written yet: f$"):
        submission.run("f", torch.zeros(3), world=2)


def test_an_error_of_its_own_is_no_stub(submit):
    assert "raised NotImplementedError: later" in said(submit("def f(x):\n    raise NotImplementedError('later')\n"))


def test_a_loop_without_end_at_import(submit):
    submission = submit("import time\nwhile True:\n    time.sleep(0.01)\n")
    assert re.search(r"does not come to an end; after 2 s it is at .*answer.py, line [23]", said(submission))


def test_a_loop_without_end_costs_its_time_once(submit, clusters, monkeypatch):
    submission = submit("import time\ndef f(x):\n    while True:\n        time.sleep(0.01)\n")
    first = said(submission)
    assert re.search(r"rank 0 had not finished after 2 s.\n  rank 0 is at .*answer.py, line [34], in f", first)
    monkeypatch.setattr(clusters, "of", None)  # nothing runs any more
    assert said(submission) == f"{first}\nThat was in an earlier test; f is not run again."


def test_a_deadlock_carries_its_run(submit):
    source = "import torch.distributed as dist\ndef f(x):\n    dist.recv(x, 1 - dist.get_rank())\n"
    with pytest.raises(CheckFailed, match="wait for what will never come") as caught:
        submit(source).run("f", torch.zeros(3), world=2)
    assert len(caught.value.run.receives()) == 2
    assert "cluster." not in str(caught.value)


def test_an_edit_takes_effect_at_once(submit, tmp_path):
    for value in (1, 2):  # of the same size, within the same second
        assert submit(f"def f(x):\n    return {value}\n").run("f", torch.zeros(1), world=1).results == [value]


def test_helpers_are_those_beside_the_file(tmp_path, clusters):
    for value in (1, 2):
        folder = tmp_path / str(value)
        folder.mkdir()
        (folder / "helper.py").write_text(f"value = {value}\n")
        (folder / "answer.py").write_text("import helper\ndef f(x):\n    return helper.value\n")
        submission = Submission(folder / "answer.py", clusters)
        assert submission.run("f", torch.zeros(1), world=1).results == [value]


def test_another_function_may_call_it(submit):
    def twice(f, x, **group):
        return f(x, **group) + f(x, **group)

    source = "import torch.distributed as dist\ndef f(x, group=None):\n    return x + dist.get_rank(group)\n"
    run = submit(source).run("f", per_rank([1, 2, 3]), world=3, around=twice)
    assert (run.function, run.results) == ("f", [2, 6, 10])
    assert submit(source).run("f", 5, world=3, around=twice, group=(0, 2)).results == [10, None, 12]


def test_what_it_is_given_is_said(submit):
    submission = submit("def f(x):\n    raise ValueError(x)\n")
    with pytest.raises(CheckFailed, match="^f on 1 rank, one number: rank 0 raised ValueError: 7\n.*answer.py, line 2"):
        submission.run("f", 7, world=1, around=lambda f, x: f(x), given="one number")


def test_a_call_outside_the_group_is_told_of_the_group(submit):
    source = "import torch.distributed as dist\ndef f(x, group=None):\n    dist.send(x, dist.get_rank())\n"
    with pytest.raises(CheckFailed, match=r"raised ValueError: .*(.|\n)*\nOnly ranks 0, 2 call it: .* get `group`\?$"):
        submit(source).run("f", torch.zeros(1), world=3, group=(0, 2))


def given_partner(f, x):
    """Rank 0 is a given partner."""
    if dist.get_rank() == 0:
        raise ValueError("nothing of yours")
    return f(x)


def test_an_error_in_a_given_partner_is_told_as_such(submit):
    with pytest.raises(
        CheckFailed, match=r"rank 0 raised ValueError: nothing of yours(.|\n)*Rank 0 is a given partner\.$"
    ):
        submit("def f(x):\n    return x\n").run("f", 1, world=2, around=given_partner)


def test_only_the_group_calls(submit):
    source = "import torch.distributed as dist\ndef f(x, group=None):\n    return dist.get_rank(group)\n"
    run = submit(source).run("f", torch.zeros(1), world=3, group=(0, 2))
    assert run.results == [0, None, 1]


def meet(functions, x):
    """Rank 0 runs f, rank 1 runs g."""
    return functions[dist.get_rank()](x)


BOTH = ("f", "g")
SENDS = "import torch.distributed as dist\ndef f(x):\n    dist.send(x, 1)\n    return 'sent'\n"
RECEIVES = "def g(x):\n    dist.recv(x, 0)\n    return x.tolist()\n"


def test_two_functions_of_the_file_meet(submit):
    tensors = per_rank([torch.ones(2), torch.zeros(2)])
    run = submit(SENDS + RECEIVES).run(BOTH, tensors, world=2, around=meet)
    assert (run.results, run.function) == (["sent", [1.0, 1.0]], "f and g")


@pytest.mark.parametrize(
    ("second", "failure", "message"),
    [
        ("def g(x):\n    raise NotImplementedError('not written yet: g')\n", NotWritten, "^not written yet: g$"),
        ("", CheckFailed, "answer.py has no function g"),
        ("def g(x):\n    dist.send(x, 0)\n", CheckFailed, "^f and g on 2 ranks.*ranks 0 and 1 wait"),
        ("def g(x):\n    dist.recv(x[:1], 0)\n", CheckFailed, "^f and g on 2 ranks.* disagree on the size"),
    ],
)
def test_it_is_said_which_of_the_two_is_wrong_and_who_runs_what(submit, second, failure, message):
    with pytest.raises(failure, match=message) as caught:
        submit(SENDS + second).run(BOTH, torch.zeros(2), world=2, around=meet)
    talked = caught.value.run is not None and failure is not NotWritten
    assert str(caught.value).endswith("\nRank 0 runs f, rank 1 runs g.") == talked
