"""What is predicted: formulas on a link, played plans on a network; which one is fastest, and from which size on."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtcourse import Link, Network
from dtcourse.network.predict import ALGORITHMS, ALL_REDUCES, crossing, fastest, predict

LINK = Link("1 Gbit/s", "50 us")
FAST = Link("10 Gbit/s", "5 us")
FLAT = [name for name in ALGORITHMS if name != "hierarchical"]


@pytest.mark.parametrize("name", FLAT)
@given(st.integers(1, 12), st.integers(0, 1000))
def test_one_rank_on_each_node_is_a_link(name, world, elements):
    """Each node then has one port, as each rank has on a link; there the formulas hold, here the plans are played."""
    formula = predict(name, world, 4 * elements, LINK)
    plan = predict(name, world, 4 * elements, Network(FAST, LINK, 1))
    assert formula[:2] == plan[:2]
    assert formula.seconds == pytest.approx(plan.seconds, rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("name", ALGORITHMS)
@given(st.integers(1, 12), st.integers(0, 1000))
def test_one_node_alone_is_a_link(name, world, elements):
    plan = predict(name, world, 4 * elements, Network(FAST, LINK, world))
    formula = predict("ring" if name == "hierarchical" else name, world, 4 * elements, FAST)
    assert formula[:2] == plan[:2]
    assert formula.seconds == pytest.approx(plan.seconds, rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_what_is_sent_arrives(name):
    for world in (2, 4, 6, 8):
        cost = predict(name, world, 4 * 97, Network(FAST, LINK, 2))
        assert sum(cost.sent) == sum(cost.received) and len(cost.sent) == len(cost.received) == world


@pytest.mark.parametrize("each", [2, 4])
@pytest.mark.parametrize("nodes", [2, 4])
@pytest.mark.parametrize("latency", ["0 s", "50 us", "10 ms"])
def test_hierarchical_as_the_top_of_the_file_has_it(each, nodes, latency):
    across, size = Link("1 Gbit/s", latency), 4 * each * nodes * 1000
    inside = 2 * (each - 1) * FAST.seconds(size // each)
    between = 2 * (nodes - 1) * across.seconds(size // nodes)
    seconds = predict("hierarchical", nodes * each, size, Network(FAST, across, each)).seconds
    bytes_alone = 2 * (nodes - 1) * size / nodes / across.bandwidth
    assert inside + bytes_alone + across.latency <= seconds + 1e-6
    assert seconds <= inside + between + 1e-6
    if latency == "0 s":
        assert seconds == pytest.approx(inside + between, abs=1e-6)


def test_a_port_that_ranks_share_carries_one_message_at_a_time():
    """Four ranks on two nodes, two messages across each way: twice what a port of their own would take."""
    size, across = 4_000_000, Link("1 Gbit/s")
    shared = predict("halving_doubling", 4, size, Network(FAST, across, 2)).seconds
    own = predict("halving_doubling", 4, size, across).seconds
    first, second = size / 2 / across.bandwidth, size / 4 * 8 / 10e9
    assert own == pytest.approx(2 * (first + size / 4 / across.bandwidth))
    assert shared == pytest.approx(2 * (2 * first + second + FAST.latency), rel=1e-3)


# -- who is fastest ---------------------------------------------------------------------------------------------------


def test_of_six_ranks_the_tree_wins_first_then_halving_and_doubling_then_the_ring():
    a, b = LINK.latency, 1 / LINK.bandwidth  # tree 5a + 6Sb, halving and doubling 6a + 7/2 Sb, ring 10a + 10/6 Sb
    first, second = crossing("tree", "halving_doubling", 6, LINK), crossing("halving_doubling", "ring", 6, LINK)
    assert first == pytest.approx(a / b / 2.5, rel=0.01) and second == pytest.approx(4 * a / b / (11 / 6), rel=0.01)
    sizes = [4, first - 16, first + 16, second - 32, second + 32, 1 << 30]
    winners = ["tree", "tree", "halving_doubling", "halving_doubling", "ring", "ring"]
    assert [fastest(6, size // 4 * 4, LINK) for size in sizes] == winners
    assert crossing("tree", "ring", 6, LINK) == crossing("ring", "tree", 6, LINK)


@given(st.sampled_from([3, 5, 6, 7, 9, 12]), st.floats(1e-6, 1e-2), st.floats(1e5, 1e10))
def test_at_a_crossing_the_faster_one_changes(world, latency, bandwidth):
    link = Link(bandwidth, latency)
    size = crossing("tree", "ring", world, link)
    before, after = ([predict(name, world, at, link).seconds for name in ("tree", "ring")] for at in (size - 4, size))
    assert before[0] < before[1] and after[0] >= after[1]


def test_no_crossing():
    assert crossing("halving_doubling", "ring", 8, LINK) is None  # always ahead
    assert crossing("ring", "ring", 8, LINK) is None


def test_slow_links_between_the_nodes_make_the_hierarchical_one_win():
    size = 10_000_000
    assert fastest(16, size, Network(FAST, LINK, 4)) == "hierarchical"
    assert fastest(16, size, Network(LINK, LINK, 4)) == "ring"
    assert fastest(6, size, Network(FAST, LINK, 4)) in ALL_REDUCES[:-1]  # it could not do it


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("star", 4, 8, LINK), "no algorithm 'star' here, but ring, root"),
        (("ring", 0, 8, LINK), "among 0 ranks nobody sends anything"),
        (("ring", 4, 9, LINK), "9 bytes are no whole number of elements of 4 bytes"),
        (("ring", 4, -4, LINK), "-4 bytes are no"),
        (("hierarchical", 4, 8, LINK), "hierarchical needs nodes: give a Network"),
        (("hierarchical", 6, 8, Network(FAST, LINK, 4)), "6 ranks do not fill nodes of 4"),
    ],
)
def test_what_cannot_be_predicted(arguments, problem):
    with pytest.raises(ValueError, match=problem):
        predict(*arguments)


@pytest.mark.parametrize(
    ("arguments", "kind", "problem"),
    [
        (("1 Gbit/s", LINK, 2), TypeError, r"inside is a Link, as in inside=Link\(.*not '1 Gbit/s'"),
        ((LINK, None, 2), TypeError, "across is a Link"),
        ((LINK, LINK, 0), ValueError, "ranks_per_node is a number from 1 on, not 0"),
        ((LINK, LINK, 2.0), ValueError, "not 2.0"),
        ((LINK, LINK, True), ValueError, "not True"),
    ],
)
def test_what_is_no_network(arguments, kind, problem):
    with pytest.raises(kind, match=problem):
        Network(*arguments)


def test_a_network_shows_what_it_is_made_of():
    network = Network(LINK, LINK, 2)
    assert repr(network) == f"Network(inside={LINK!r}, across={LINK!r}, ranks_per_node=2)"
    assert network == Network(LINK, Link("1 Gbit/s", "50 us"), 2) != Network(LINK, LINK, 3)
