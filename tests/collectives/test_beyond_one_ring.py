"""Trees, halving-doubling, the hierarchy and the ring broadcast: the right values, and exactly the formula's bytes.

All run in sub-groups of one cluster of eight, several algorithms in each run.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from dtcourse import Cluster, RankError, Run, per_rank, provenance, region
from dtcourse.collectives import halving_doubling, hierarchical, ring_broadcast, tree
from dtcourse.collectives.halving_doubling import halving_doubling_all_reduce
from dtcourse.collectives.hierarchical import HierarchicalAllReduce
from dtcourse.collectives.tree import tree_all_gather, tree_all_reduce, tree_broadcast, tree_reduce
from dtcourse.origins import position


@pytest.fixture(scope="module")
def eight():
    with Cluster(8, strict=True) as cluster:
        yield cluster


@dataclass(frozen=True)
class Case:
    """The ranks that form the group, the elements of their tensors, the root, and the ranks of a node."""

    members: tuple[int, ...]
    size: int
    root: int = 0
    ranks_per_node: int = 1

    @property
    def world(self) -> int:
        return len(self.members)


def run_all(cluster: Cluster, case: Case, tensors: list[torch.Tensor]) -> Run:
    """Every collective on copies of the tensors; its messages are labelled with its name, and results are by name."""
    calls = {
        "tree_reduce": lambda x, group: tree_reduce(x, case.root, group),
        "tree_broadcast": lambda x, group: tree_broadcast(x, case.root, group),
        "tree_all_reduce": tree_all_reduce,
        "tree_all_gather": tree_all_gather,
        "halving_doubling_all_reduce": halving_doubling_all_reduce,
        "hierarchical_all_reduce": lambda x, group: HierarchicalAllReduce(case.ranks_per_node, group)(x, group),
        "ring_broadcast": lambda x, group: ring_broadcast.ring_broadcast(x, case.root, group),
    }

    def function(tensor):
        group, results = dist.new_group(list(case.members)), {}
        if dist.get_rank() in case.members:
            for name, call in calls.items():
                results[name] = tensor.clone()
                with region("collective", named=name):
                    assert call(results[name], group) is None
        return results

    everybody = [torch.empty(case.size, dtype=torch.int64)] * cluster.world_size
    for rank, tensor in zip(case.members, tensors, strict=True):
        everybody[rank] = tensor
    return cluster.run(function, per_rank(everybody))


def check(run: Run, case: Case, tensors: list[torch.Tensor]) -> None:
    ranks, total = range(case.world), sum(tensors)
    gathered = torch.cat([x.tensor_split(case.world)[j] for j, x in enumerate(tensors)])
    ends = {
        "tree_broadcast": [tensors[case.root]] * case.world,
        "ring_broadcast": [tensors[case.root]] * case.world,
        "tree_all_gather": [gathered] * case.world,
        **{name: [total] * case.world for name in ("tree_all_reduce", "halving_doubling_all_reduce")},
        "hierarchical_all_reduce": [total] * case.world,
    }
    for name, expected in ends.items():
        for rank in ranks:
            assert torch.equal(run.results[case.members[rank]][name], expected[rank]), (name, rank)
    assert torch.equal(run.results[case.members[case.root]]["tree_reduce"], total)
    for name, formula in BYTES.items():
        sent = [
            sum(e.bytes for e in run.messages(member) if e.labels.get("named") == name and not e.control)
            for member in case.members
        ]
        assert sent == [formula(case, rank) for rank in ranks], name
    assert all(e.rank in case.members for e in run.messages())


# -- bytes, as the formulas have them ----------------------------------------------------------------------------------


def bytes_of_chunks(size: int, parts: int) -> list[int]:
    return [8 * len(chunk) for chunk in torch.empty(size).tensor_split(parts)]


def children(place: int, world: int) -> int:
    return sum(place % (2 * d) == 0 and place + d < world for d in (1, 2, 4))


def reduce_bytes(case: Case, rank: int) -> int:
    return 8 * case.size * (rank != case.root)


def broadcast_bytes(case: Case, rank: int) -> int:
    return 8 * case.size * children((rank - case.root) % case.world, case.world)


def all_gather_bytes(case: Case, rank: int) -> int:
    subtree = rank & -rank  # a rank sends up the chunks from its own to the next one that is not below it
    up = sum(bytes_of_chunks(case.size, case.world)[rank : rank + subtree])
    return up + 8 * case.size * children(rank, case.world)


def halving_doubling_bytes(case: Case, rank: int) -> int:
    total, power = 8 * case.size, {1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 4, 8: 8}[case.world]
    pairs = case.world - power
    if rank < 2 * pairs and rank % 2 == 0:
        return total
    number = rank // 2 if rank < 2 * pairs else rank - pairs
    c = bytes_of_chunks(case.size, power)
    blocks = [sum(c[number // d * d : number // d * d + d]) for d in (1, 2, 4) if d < power]
    return total - c[number] + sum(blocks) + total * (rank < 2 * pairs)


def ring_bytes(chunks: list[int], rank: int) -> int:
    parts = len(chunks)
    return 2 * sum(chunks) - chunks[(rank + 1) % parts] - chunks[(rank + 2) % parts]


def hierarchical_bytes(case: Case, rank: int) -> int:
    node, place = divmod(rank, case.ranks_per_node)
    inside = bytes_of_chunks(case.size, case.ranks_per_node)
    own = inside[(place + 1) % case.ranks_per_node]
    across = bytes_of_chunks(own // 8, case.world // case.ranks_per_node)
    return ring_bytes(inside, place) + ring_bytes(across, node)


BYTES: dict[str, Callable[[Case, int], int]] = {
    "tree_reduce": reduce_bytes,
    "tree_broadcast": broadcast_bytes,
    "tree_all_reduce": lambda case, rank: 8 * case.size * ((rank != 0) + children(rank, case.world)),
    "tree_all_gather": all_gather_bytes,
    "halving_doubling_all_reduce": halving_doubling_bytes,
    "hierarchical_all_reduce": hierarchical_bytes,
    "ring_broadcast": lambda case, rank: 8 * case.size * ((rank + 1) % case.world != case.root),
}


@pytest.mark.parametrize(("world", "sent"), [(4, [1.5] * 4), (8, [1.75] * 8), (6, [1, 2.5, 1, 2.5, 1.5, 1.5])])
def test_the_formulas_as_the_docstring_has_them(world, sent):
    """In tensors of 24 elements, where p divides the tensor."""
    case = Case(tuple(range(world)), 24)
    assert [halving_doubling_bytes(case, rank) / 192 for rank in range(world)] == sent


# -- the values and the bytes ------------------------------------------------------------------------------------------


@st.composite
def cases(draw: st.DrawFn) -> Case:
    world = draw(st.integers(1, 8))
    members = tuple(sorted(draw(st.permutations(range(8)))[:world]))
    ranks_per_node = draw(st.sampled_from([n for n in range(1, world + 1) if world % n == 0]))
    return Case(members, draw(st.integers(0, 40)), draw(st.integers(0, world - 1)), ranks_per_node)


def drawn(case: Case, seed: int) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [torch.randint(-99, 99, (case.size,), generator=draw) for _ in range(case.world)]


@settings(max_examples=30, deadline=None)
@given(cases(), st.integers(0, 100))
def test_any_group_size_and_root(eight, case, seed):
    tensors = drawn(case, seed)
    check(run_all(eight, case, tensors), case, tensors)


@pytest.mark.parametrize("world", range(1, 9))
def test_every_world(eight, world):
    case = Case(tuple(range(world)), 2 * world + 1, root=world - 1, ranks_per_node=2 if world % 2 == 0 else 1)
    tensors = drawn(case, world)
    check(run_all(eight, case, tensors), case, tensors)


def test_on_gloo():
    with Cluster(6, backend="gloo") as cluster:
        for case in (Case((0, 1, 2, 3, 4, 5), 7, 4, 3), Case((0, 2, 3, 5), 2, 1, 2), Case((1, 4, 5), 0), Case((3,), 5)):
            tensors = drawn(case, 1)
            check(run_all(cluster, case, tensors), case, tensors)


def test_floats_of_any_shape_in_the_whole_world(eight):
    def function(x):
        collectives = (tree_all_reduce, halving_doubling_all_reduce, HierarchicalAllReduce(4))
        copies = [x.clone() for _ in collectives]
        for collective, copy in zip(collectives, copies, strict=True):
            collective(copy)
        return copies

    tensors = [torch.randn(3, 5, 2, generator=torch.Generator().manual_seed(rank)) for rank in range(8)]
    for copies in eight.run(function, per_rank(tensors)).results:
        for copy in copies:
            torch.testing.assert_close(copy, sum(tensors))


# -- what the files say ------------------------------------------------------------------------------------------------


def rows(module) -> Iterator[tuple[int, list[str]]]:
    """(rank, cells) of each line "rank 0 sends ..." of the table at the top of the file."""
    for line in module.__doc__.splitlines():
        if row := re.match(r" +rank (\d) sends(?: to)?  +(.*)", line):
            yield int(row[1]), [cell for cell in re.split(r"\s*\|\s*|  +", row[2]) if cell]


def followed(cluster: Cluster, world: int, function: Callable) -> Run:
    """The run of a collective on the first `world` ranks, on tensors of one element for each chunk."""

    def call(x):
        group = dist.new_group(list(range(world)))
        if dist.get_rank() < world:
            function(x, group=group)

    return cluster.run(call, per_rank([provenance(world, r % world, world) for r in range(8)]), watch=True)


def positions(payload: torch.Tensor, world: int) -> str:
    return " ".join(str(position(int(value), world)) for value in payload)


def hierarchical_of_two(x, group):
    HierarchicalAllReduce(2, group)(x)


@pytest.mark.parametrize(
    ("module", "function"),
    [(halving_doubling, halving_doubling_all_reduce), (hierarchical, hierarchical_of_two)],
)
def test_the_table_of_chunks_and_receivers(eight, module, function):
    run, table = followed(eight, 4, function), list(rows(module))
    assert [rank for rank, _ in table] == [0, 1, 2, 3]
    for rank, cells in table:
        assert [f"{positions(e.payload, 4)} to {e.peer}" for e in run.messages(rank)] == cells
        assert [e.step for e in run.messages(rank)] == [1, 2, 3, 4]


def test_the_table_of_the_tree(eight):
    run, table = followed(eight, 6, tree_all_reduce), list(rows(tree))
    distances = [int(n) for n in re.search(r"    distance  +([\d |]+)", tree.__doc__)[1].replace("|", "").split()]
    assert [rank for rank, _ in table] == [0, 1, 2, 3, 4, 5] and distances == [1, 2, 4, 4, 2, 1]
    for rank, cells in table:
        assert [e.peer for e in run.messages(rank)] == [int(cell) for cell in cells if cell != "-"]
        for distance, cell in zip(distances, cells, strict=True):
            assert cell == "-" or abs(int(cell) - rank) == distance


def test_the_table_of_the_ring_broadcast(eight):
    run, table = followed(eight, 4, ring_broadcast.ring_broadcast), list(rows(ring_broadcast))
    assert [rank for rank, _ in table] == [0, 1, 2, 3]
    for rank, cells in table:
        assert [positions(e.payload, 4) for e in run.messages(rank)] == [cell for cell in cells if cell != "-"]
        assert {e.peer for e in run.messages(rank)} == ({rank + 1} if rank < 3 else set())
    for before, after in itertools.pairwise(table[:3]):  # what arrives in one step leaves in the next
        assert ["-", *before[1][:-1]] == after[1]
    for rank in (1, 2):  # a rank asks for the next chunk before it waits for this one to leave
        pairs = zip(run.messages(rank), run.receives(rank)[1:], strict=False)
        assert all(arriving.posted < leaving.wait_from for leaving, arriving in pairs)


def test_who_steps_aside(eight):
    """N = 6, as the docstring of halving-doubling has it."""
    run = followed(eight, 6, halving_doubling_all_reduce)
    assert {(e.rank, e.peer) for e in run.messages() if e.payload.numel() == 6} == {(0, 1), (2, 3), (1, 0), (3, 2)}
    assert {e.rank for e in run.messages() if e.payload.numel() < 6} == {1, 3, 4, 5}


# -- what they refuse --------------------------------------------------------------------------------------------------


COLLECTIVES = [
    tree_reduce,
    tree_broadcast,
    tree_all_reduce,
    tree_all_gather,
    halving_doubling_all_reduce,
    ring_broadcast.ring_broadcast,
    lambda x: HierarchicalAllReduce(2)(x),
]


def test_a_strided_tensor_is_refused(eight):
    def function():
        said = []
        for collective in COLLECTIVES:
            try:
                collective(torch.ones(4, 4).t())
            except ValueError as refused:
                said.append(str(refused))
        return said

    for said in eight.run(function).results:
        assert len(said) == len(COLLECTIVES) and all("pass tensor.contiguous()" in words for words in said)


@pytest.mark.parametrize("function", [tree_reduce, tree_broadcast, ring_broadcast.ring_broadcast])
@pytest.mark.parametrize("root", [-1, 8])
def test_a_root_outside_is_refused(eight, function, root):
    with pytest.raises(RankError, match=rf"root {root} is not in a group of 8: its ranks are 0 to 7"):
        eight.run(lambda: function(torch.ones(1), root))


@pytest.mark.parametrize("ranks_per_node", [0, 3, 16])
def test_nodes_of_different_sizes_are_refused(eight, ranks_per_node):
    said = f"8 ranks are no whole number of nodes of {ranks_per_node} ranks each"
    with pytest.raises(RankError, match=said):
        eight.run(lambda: HierarchicalAllReduce(ranks_per_node))


def test_the_nodes_of_another_group_are_refused(eight):
    def function():
        same = dist.new_group(list(range(8)))
        halves = [dist.new_group(ranks) for ranks in ([0, 1, 2, 3], [4, 5, 6, 7])]
        all_reduce, x = HierarchicalAllReduce(2), torch.ones(3)
        all_reduce(x, dist.group.WORLD)
        all_reduce(x, same)  # a communication thread has a group of its own, of the same ranks
        all_reduce(x, halves[dist.get_rank() // 4])

    with pytest.raises(RankError, match="made for the nodes of another group"):
        eight.run(function)
