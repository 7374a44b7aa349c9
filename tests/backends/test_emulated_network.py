"""Two levels of links: fast inside a node; between nodes one port for all ranks of a node, in and out."""

import pytest
import torch
import torch.distributed as dist
from test_link import close_to, transfers

from dtcourse import Cluster, Link, Network
from dtcourse.collectives.ring import ring_all_reduce
from dtcourse.network.predict import predict

INSIDE, ACROSS = Link("100 MB/s", "1 ms"), Link("10 MB/s", "3 ms")
NETWORK = Network(INSIDE, ACROSS, 2)
SIZE = 400_000  # bytes: 4 ms inside a node, 40 ms between two


@pytest.fixture(scope="module", params=["shared_memory", "gloo"])
def cluster(request):
    with Cluster(4, backend=request.param, link=NETWORK) as cluster:
        yield cluster


def send_along(*pairs):
    """Each sends SIZE bytes, all at once."""
    x, rank = torch.ones(SIZE // 4), dist.get_rank()
    dist.barrier()
    works = [dist.isend(x, receiver) for sender, receiver in pairs if sender == rank]
    works += [dist.irecv(torch.empty(SIZE // 4), sender) for sender, receiver in pairs if receiver == rank]
    [work.wait() for work in works]


def test_a_message_takes_the_link_between_its_ends(cluster):
    for ends, seconds in {(0, 1): 0.005, (2, 3): 0.005, (1, 2): 0.043, (3, 0): 0.043}.items():
        cluster.run(send_along, ends)
        (message,) = transfers(cluster)
        assert message.seconds == pytest.approx(seconds)
        assert message.due[ends[1]] - message.due[ends[0]] == pytest.approx(0.001 if seconds < 0.01 else 0.003)


def span(messages):
    return max(max(m.due.values()) for m in messages) - min(m.ready for m in messages)


@pytest.mark.parametrize(
    ("pairs", "seconds"),
    [
        ([(0, 2), (1, 3)], 0.083),  # out of one node, into one other: one after the other
        ([(0, 2), (3, 1)], 0.043),  # a port works both ways at once
        ([(0, 2), (0, 1)], 0.043),  # inside and across are ports of their own
    ],
)
def test_ranks_of_a_node_share_its_port(cluster, pairs, seconds):
    def measure():
        cluster.run(send_along, *pairs)
        return span(transfers(cluster))

    close_to(seconds, measure)


def test_a_ring_of_messages_and_one_of_the_library(cluster):
    def measure():
        cluster.run(lambda: ring_all_reduce(torch.ones(SIZE // 4)))
        return span(transfers(cluster))

    seconds = predict("ring", 4, SIZE, NETWORK).seconds
    close_to(seconds, measure)
    cluster.run(lambda: dist.all_reduce(torch.ones(SIZE // 4)))
    (transfer,) = transfers(cluster)
    assert transfer.seconds == pytest.approx(seconds)


def test_a_network_may_end_with_a_node_that_is_not_full():
    with Cluster(3, link=NETWORK) as cluster:
        assert cluster.link == NETWORK and "ranks_per_node=2" in repr(cluster)
        cluster.run(send_along, (0, 1), (1, 2))
        assert sorted(m.seconds for m in transfers(cluster)) == pytest.approx([0.005, 0.043])
