"""What the tests of `buckets` expect is what its tables say, and what the library does."""

import ast
from pathlib import Path

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from dtcourse.data_parallel.buckets import MIB, assign
from dtcourse.grading.bucketing import Case, right_buckets

SOLUTION = Path(__file__).parent.parent.parent / "solutions" / "buckets.py"
DTYPES = {"a": torch.float32, "b": torch.float64}


def table(function, first_word):
    """The rows of the table in the docstring of a function, from the line on that begins so; each a list of columns."""
    tree = ast.parse(SOLUTION.read_text())
    said = next(ast.get_docstring(node) for node in tree.body if getattr(node, "name", "") == function)
    lines = iter(said.splitlines())
    head = next(line for line in lines if line.strip().startswith(first_word))
    body = []
    for line in lines:
        if not line.strip():
            break
        body.append([part.strip() for part in line.strip().split("  ") if part.strip()])
    return head, body


def test_the_table_of_assignments():
    _, rows = table("assign", "sizes ")
    assert len(rows) == 4
    for sizes, limits, buckets, held in rows:
        sizes, (first, others) = [int(size) for size in sizes.split()], map(int, limits.split(","))
        closed, opened = right_buckets(Case(sizes, "a" * len(sizes), others, first))
        assert " ".join(f"[{' '.join(map(str, bucket))}]" for bucket in closed + opened) == buckets
        assert " ".join(str(sum(sizes[n] for n in bucket)) for bucket in closed + opened) == held


def test_the_table_of_moments():
    """Each bucket starts when it and those before it are full, or else in wait()."""
    head, rows = table("overlap", "gradients of")
    moments = [int(part.split()[1]) for part in head.split("  ") if part.strip().startswith("layer")]
    assert moments == [4, 3, 2, 0] and "layer 1 not used" in head and head.endswith("wait()")
    started = 0
    for name, *marks in rows:
        layers = {int(number) for number in name.split(":")[1].split(",")}
        full = max((moments.index(layer) if layer in moments else len(moments) for layer in layers), default=0)
        started = max(started, full)
        columns = [0, 1, 2, 4, 5]  # of the moments, and wait(); between them stands the layer that is not used
        expected = ["."] * columns[started] + ["start"]
        assert marks == expected


@given(
    st.lists(st.tuples(st.integers(0, 40), st.sampled_from("ab")), min_size=1, max_size=15),
    st.integers(1, 60),
    st.integers(1, 60),
)
def test_the_rule_is_the_librarys(layers, bucket, first):
    """Sizes and limits in bytes of 8."""
    parameters = [nn.Parameter(torch.empty(8 * size // DTYPES[d].itemsize, dtype=DTYPES[d])) for size, d in layers]
    made = assign(parameters, 8 * bucket / MIB, 8 * first / MIB)
    numbers = [[next(i for i, p in enumerate(parameters) if p is q) for q in one] for one in made]
    closed, opened = right_buckets(Case([size for size, _ in layers], "".join(d for _, d in layers), bucket, first))
    assert numbers[: len(closed)] == closed and sorted(numbers[len(closed) :]) == sorted(opened)
