"""The formulas are what the plans come to when their messages go through ports."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtcourse.network import Link, costs, plans
from dtcourse.network.ports import Ports

LINK = Link("10 MB/s", "1 ms")
WORLDS = range(1, 9)


def played(plan, world, link=LINK):
    """Seconds until the last rank is done, and the bytes out of and into each rank."""
    messages = [list(r) for r in plan]
    ports = Ports(link, [0] * world, [0] * world)
    seconds = max(ports.play(messages, tuple(range(world)), 0).values()) / 1e9
    sent, received = [0] * world, [0] * world
    for sender, receiver, size in (m for r in messages for m in r):
        sent[sender] += size
        received[receiver] += size
    return seconds, tuple(sent), tuple(received)


@given(st.integers(1, 12), st.integers(0, 10_000), st.sampled_from([1, 2, 4, 8]))
def test_ring_all_reduce(world, elements, element_size):
    seconds, sent, received = played(plans.ring_all_reduce(plans.chunk_sizes(elements, element_size, world)), world)
    cost = costs.ring_all_reduce(world, elements, LINK, element_size)
    assert (cost.sent, cost.received) == (sent, received)
    assert cost.seconds == pytest.approx(seconds, rel=1e-6, abs=1e-6)


def test_the_ring_as_facts_have_it():
    for world in WORLDS:
        size, n = 840 * 1000, world  # bytes; each world divides it
        cost = costs.ring_all_reduce(world, size // 4, LINK)
        assert set(cost.sent) == {2 * (n - 1) * size // n} and cost.sent[0] < 2 * size
        assert cost.seconds == pytest.approx(2 * (n - 1) * LINK.latency + 2 * (n - 1) / n * size / LINK.bandwidth)


def test_gather_takes_as_long_as_the_port_of_the_root():
    for world in WORLDS:
        seconds, sent, received = played(plans.gather(world, 10_000, 0), world)
        cost = costs.gather(world, 10_000, LINK)
        assert (cost.sent, cost.received) == (sent, received) and cost.seconds == pytest.approx(seconds)
        assert cost.seconds == pytest.approx((world - 1) * 1e-3 + (0.001 if world > 1 else 0))


def test_all_reduce_through_a_root():
    for world in WORLDS:
        in_turn = [[(j, 0, 10_000)] for j in range(1, world)] + [[(0, j, 10_000) for j in range(1, world)]]
        seconds, sent, received = played(in_turn, world)
        cost = costs.root_all_reduce(world, 10_000, LINK)
        assert (cost.sent, cost.received) == (sent, received) and cost.seconds == pytest.approx(seconds)


def test_more_servers_divide_the_share_of_each():
    for workers in (1, 2, 4, 6):
        one = costs.parameter_server(workers, [600], LINK)
        assert one.sent == one.received == (workers * 600, *[600] * workers)
        assert one.seconds == pytest.approx(2 * LINK.seconds(workers * 600))
        two = costs.parameter_server(workers, [301, 299], LINK)
        assert two.sent == (workers * 301, workers * 299, *[600] * workers)
        assert two.seconds == pytest.approx(2 * LINK.seconds(max(workers * 301, 600)))


@pytest.mark.parametrize("servers", [1, 2, 4])
def test_parameter_servers_when_no_two_workers_begin_at_the_same(servers):
    workers, shard = 4, 10_000
    world = servers + workers
    push = [[(servers + w, (w + i) % servers, shard) for w in range(workers)] for i in range(servers)]
    pull = [[(server, worker, size) for worker, server, size in r] for r in push]
    slow_port = Link("10 MB/s")  # a round more for each server would be a latency more
    seconds = sum(played([[m for r in way for m in r]], world, slow_port)[0] for way in (push, pull))
    assert seconds == pytest.approx(costs.parameter_server(workers, [shard] * servers, slow_port).seconds)


@pytest.mark.parametrize("servers", [1, 2, 4])
def test_workers_that_all_go_to_the_same_server_first_queue_there(servers):
    workers, shard = 4, 10_000
    push = [[(servers + w, server, shard) for w in range(workers)] for server in range(servers)]
    seconds, _, _ = played(push, servers + workers, Link("10 MB/s"))
    assert seconds == pytest.approx((workers + servers - 1) * 0.001)
    assert seconds >= costs.parameter_server(workers, [shard] * servers, Link("10 MB/s")).seconds / 2


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_rounds_with_one_server_overlap(workers):
    """Answers go out one by one, and each worker pushes as soon as it has its own."""
    ports, ready, rounds = Ports(LINK, [0] * (workers + 1), [0] * (workers + 1)), [0] * (workers + 1), []
    for _ in range(3):
        updated = max(ports.carry(w, 0, 10_000, ready[w]).arrived for w in range(1, workers + 1))
        ready = [0, *(ports.carry(0, w, 10_000, updated).arrived for w in range(1, workers + 1))]
        rounds.append(updated)
    assert (rounds[2] - rounds[1]) / 1e9 == pytest.approx(2 * LINK.latency + (workers + 1) * 0.001)


# -- beyond the ring --------------------------------------------------------------------------------------------------

BY_ELEMENTS = {
    "tree_all_reduce": lambda world, n, each: plans.tree_all_reduce(world, n * each),
    "tree_broadcast": lambda world, n, each: plans.tree_broadcast(world, n * each),
    "tree_all_gather": lambda world, n, each: plans.tree_all_gather(plans.chunk_sizes(n, each, world)),
    "halving_doubling_all_reduce": lambda world, n, each: plans.halving_doubling_all_reduce(n, each, world),
    "ring_broadcast": lambda world, n, each: plans.ring_broadcast(plans.chunk_sizes(n, each, world), 0),
    "ring_all_gather": lambda world, n, each: plans.ring_all_gather(one_on(plans.chunk_sizes(n, each, world))),
}
LINKS = [LINK, Link("1 GB/s"), Link("1 kB/s", "1 ns"), Link("1 GB/s", "2 s")]


def one_on(chunks):
    return chunks[1:] + chunks[:1]


def formula(name, world, elements, link, element_size=4):
    if name in ("tree_all_reduce", "tree_broadcast"):
        return getattr(costs, name)(world, elements * element_size, link)
    return getattr(costs, name)(world, elements, link, element_size)


@pytest.mark.parametrize("name", BY_ELEMENTS)
@given(st.integers(1, 12), st.integers(0, 10_000), st.sampled_from([1, 4, 8]), st.sampled_from(LINKS))
def test_a_formula_is_its_plan(name, world, elements, element_size, link):
    seconds, sent, received = played(BY_ELEMENTS[name](world, elements, element_size), world, link)
    cost = formula(name, world, elements, link, element_size)
    assert (cost.sent, cost.received) == (sent, received)
    if name == "halving_doubling_all_reduce" and world & (world - 1):  # chunks of unequal length on unequal ranks
        assert -1e-6 <= cost.seconds - seconds <= 2 * math.log2(world) * element_size / link.bandwidth + 1e-6
    else:
        assert cost.seconds == pytest.approx(seconds, rel=1e-6, abs=1e-6)


TABLE = {
    "ring": "ring_all_reduce", "through a root": "root_all_reduce", "tree": "tree_all_reduce",
    "halving and doubling": "halving_doubling_all_reduce", "ring broadcast": "ring_broadcast",
    "tree broadcast": "tree_broadcast", "ring all-gather": "ring_all_gather", "tree all-gather": "tree_all_gather",
}  # fmt: skip


def value(term, **letters):
    """Of a formula as the table has it: a space between two factors is a product."""
    term = re.sub(r"\(([-+/\w ()]*)\)", lambda m: f"({m[1]})", term)
    term = re.sub(r"(?<=[\w)]) (?=[\w(])", " * ", term)
    return eval(term, {}, letters)


def rows_of_the_table():
    for line in costs.__doc__.splitlines():
        found = re.fullmatch(r"    (\w[\w -]*?)  +(\S.*?)  +(\S.*)", line)
        if found and found[1] in TABLE:
            yield found.groups()


def test_the_table_at_the_top_of_the_file_is_what_the_functions_say():
    rows = list(rows_of_the_table())
    assert [name for name, *_ in rows] == list(TABLE)
    for name, seconds, most in rows:
        for n in WORLDS[1:]:
            down, up, elements = n.bit_length() - 1, (n - 1).bit_length(), 840
            letters = {"N": n, "S": 4 * elements, "a": LINK.latency, "b": 1 / LINK.bandwidth}
            letters |= {"D": down, "U": up, "p": 1 << down}
            rest = {"seconds": 2 * LINK.seconds(4 * elements), "most": 4 * elements}
            more = rest if name == "halving and doubling" and n & (n - 1) else dict.fromkeys(rest, 0)
            sizes = (
                (4 * elements,)
                if TABLE[name] in ("root_all_reduce", "tree_all_reduce", "tree_broadcast")
                else (elements,)
            )
            cost = getattr(costs, TABLE[name])(n, *sizes, LINK)
            assert cost.seconds == pytest.approx(value(seconds, **letters) + more["seconds"]), (name, n)
            assert max(cost.sent) == pytest.approx(value(most.split(",")[0], **letters) + more["most"]), (name, n)


@pytest.mark.parametrize("nodes", [1, 2, 3, 4])
@pytest.mark.parametrize("each", [1, 2, 3, 4])
def test_hierarchical_sends_what_the_formula_says_inside_and_across(nodes, each):
    world, size = nodes * each, 4 * 144
    inside, across = [0] * world, [0] * world
    for messages in plans.hierarchical_all_reduce(size // 4, 4, world, each):
        for sender, receiver, count in messages:
            (inside if sender // each == receiver // each else across)[sender] += count
    assert inside == [2 * (each - 1) * size // each] * world
    assert across == [2 * (nodes - 1) * size // nodes // each] * world


def test_hierarchical_wants_full_nodes():
    with pytest.raises(ValueError, match="6 ranks do not fill nodes of 4"):
        list(plans.hierarchical_all_reduce(8, 4, 6, 4))


# -- rooted -----------------------------------------------------------------------------------------------------------

ROOTED = {"broadcast": plans.ring_broadcast, "reduce": plans.ring_reduce}


@pytest.mark.parametrize("name", ROOTED)
@given(st.integers(1, 9), st.integers(0, 100), st.data())
def test_rooted_plans_bring_each_chunk_where_it_belongs(name, world, elements, data):
    root = data.draw(st.integers(0, world - 1))
    sizes = plans.chunk_sizes(elements, 4, world)
    _, sent, received = played(ROOTED[name](sizes, root), world)
    quiet = sent if name == "reduce" else received
    loud = received if name == "reduce" else sent
    if world > 1:
        assert quiet[root] == 0 and loud[root] == elements * 4
        assert all(quiet[rank] == elements * 4 for rank in range(world) if rank != root)


def test_a_ring_broadcast_takes_as_long_as_a_ring_all_reduce():
    for world in WORLDS:
        sizes = plans.chunk_sizes(840, 1000, world)
        assert played(plans.ring_broadcast(sizes, 0), world)[0] == pytest.approx(
            played(plans.ring_all_reduce(sizes), world)[0]
        )


# -- ports ------------------------------------------------------------------------------------------------------------


def test_two_senders_share_the_port_of_a_receiver_and_two_receivers_that_of_a_sender():
    ports = Ports(LINK, [0] * 3, [0] * 3)
    assert ports.carry(1, 0, 10_000, ready=0) == (1_000_000, 2_000_000)
    assert ports.carry(2, 0, 10_000, ready=0) == (2_000_000, 3_000_000)
    ports = Ports(LINK, [0] * 3, [0] * 3)
    assert ports.carry(0, 1, 10_000, ready=0).left == 1_000_000
    assert ports.carry(0, 2, 10_000, ready=500_000).left == 2_000_000


def test_both_directions_at_once():
    ports = Ports(LINK, [0] * 2, [0] * 2)
    assert ports.carry(0, 1, 10_000, ready=0) == ports.carry(1, 0, 10_000, ready=0)


def test_no_bytes_need_no_port():
    ports = Ports(LINK, [0] * 2, [0] * 2)
    ports.carry(0, 1, 10_000, ready=0)
    assert ports.carry(0, 1, 0, ready=10) == (10, 1_000_010)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 9), st.integers(0, 99)), max_size=40))
def test_no_port_ever_carries_two_messages_at_once(messages):
    ports = Ports(Link(1e9), [0] * 4, [0] * 4)
    busy = {}
    for sender, receiver, size, ready in messages:
        left = ports.carry(sender, receiver, size, ready).left
        assert left - size >= ready
        for port in (("out", sender), ("in", receiver)):
            assert size == 0 or left - size >= busy.get(port, 0)
            busy[port] = max(left, busy.get(port, 0)) if size else busy.get(port, 0)


def test_what_would_take_for_ever_still_fits_into_a_port():
    ports = Ports(Link(1e-300, 1e300), *(memoryview(bytearray(16)).cast("q") for _ in range(2)))
    for _ in range(3):
        passage = ports.carry(0, 1, 1 << 40, ready=10**18)
        assert 10**18 < passage.left < passage.arrived < 1 << 63
