"""What is said of a file that was not run is certain; of all else, nothing is said."""

import pytest

from dtcourse.grading.glance import Seen, glance, uses


@pytest.fixture
def look(tmp_path):
    def look(source):
        (tmp_path / "answer.py").write_text(source)
        return glance(tmp_path / "answer.py", ["f", "g"])

    return look


STUB = 'def {0}():\n    """Says what."""\n    raise NotImplementedError("not written yet: {0}")\n'
F, G = STUB.format("f"), STUB.format("g")


def test_nothing_is_written(look):
    assert look(F + G).stubs == {"f": "not written yet: f", "g": "not written yet: g"}


CLASS = """import torch
class G({base}):
    def {method}(ctx, x):
        {body}
    def backward(ctx, x):
        raise NotImplementedError("not written yet: G, too")
def g(x):
    \"\"\"Nothing to write here.\"\"\"
    return G.apply(x)
"""
RAISES = 'raise NotImplementedError("not written yet: G")'


def applied(base="torch.autograd.Function", method="forward", body=RAISES):
    return F + CLASS.format(base=base, method=method, body=body)


def test_an_autograd_function_is_not_written(look):
    assert look(applied()).stubs == {"f": "not written yet: f", "g": "not written yet: G"}


@pytest.mark.parametrize(
    "source",
    [
        applied(body="return x"),
        applied(base="dict"),
        applied(body=RAISES + "\n    def apply(x): return x"),
        applied(method="other"),
        F + "def g(x): return G.apply(x)",
        F + "def g(): pass",
        F + "from somewhere_else import *",
        "f = g = len",
        "import os.path as f\nclass g: pass",
        "try:\n    import nowhere\nexcept ImportError:\n    pass\ndef f(): import nowhere\ndef g(): import nowhere",
        "import sys\nsys.path.append('x')\nimport nowhere",
        "for name in 'fg': globals()[name] = len",
        F + 'def g():\n    raise NotImplementedError("later")',
        "x = 1 / 0\ndef f(): pass\ndef g(): pass",
    ],
)
def test_what_may_be_is_left_to_the_run(look, source):
    assert look(source) == Seen()


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (F + "return 1", "line 4 is not Python ('return' outside function)"),
        ("import os, nowhere.at_all\n", "line 1 (import os, nowhere.at_all) raised ModuleNotFoundError: No module"),
        (F + "# g", "answer.py has no function g"),
    ],
)
def test_what_is_certain_is_said(look, source, said):
    assert said in look(source).problem


def test_a_helper_beside_the_file_is_found(look, tmp_path):
    (tmp_path / "beside.py").write_text("")
    assert look("from beside import f, g") == Seen()


def test_what_a_function_uses(tmp_path):
    (tmp_path / "answer.py").write_text("def a(): b()\ndef b(): c()\ndef c(): pass\ndef d(): pass\n")
    assert uses(tmp_path / "answer.py", "a") == {"a", "b", "c"}
