"""The formulas are what the plans come to when their messages go through ports."""

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


# -- ports --------------------------------------------------------------------------------------------------------


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
