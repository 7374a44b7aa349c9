"""The findings that several exercises share: partitions, mixtures, and what travels in any order."""

import dataclasses

import pytest
import torch

from dtcourse import Run, per_rank, provenance
from dtcourse.collectives import root
from dtcourse.events import COLLECTIVE, RETURN, SEND, Event
from dtcourse.grading.messages import Parcel, messages, received_bytes
from dtcourse.grading.mixtures import Mistake, difference, mean_mistakes, mixture, text
from dtcourse.grading.partition import drawn, not_a_partition
from dtcourse.grading.submission import Clusters, Submission
from dtcourse.grading.transport import added_on_the_way
from dtcourse.grading.values import Holding, holdings

# -- partitions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("taken", "said"),
    [
        ([[0, 1], [2]], []),
        ([[2], [], [1, 0]], []),
        ([[0, 1], [1, 2]], ["sample 1 goes to ranks 0 and 1: it has to go to exactly one"]),
        ([[0], [2]], ["sample 1 goes to no rank: it has to go to exactly one"]),
        ([[0, 0, 1], [2]], ["rank 0 takes sample 0 2 times"]),
        ([[0, 1], [2, 3]], ["rank 1 takes sample 3, and the samples are 0 to 2"]),
    ],
)
def test_a_partition_gives_each_thing_to_one_rank(taken, said):
    assert list(not_a_partition(taken, 3, "sample")) == said


def test_a_partition_is_drawn():
    assert drawn([[0, 1], [1, 1]], 3) == "  rank 0   x x .\n  rank 1   . 2 ."


# -- mixtures ----------------------------------------------------------------------------------------------------------

PARTS = {f"g{rank}": torch.randn(4, 2, generator=torch.Generator().manual_seed(rank)).double() for rank in range(3)}


@pytest.mark.parametrize(
    ("amounts", "words"),
    [
        ((0.5, 1 / 3, 0), "1/2 g0 + 1/3 g1"),
        ((1, 0, -1), "g0 - g2"),
        ((0, -2, 0.38197), "-2 g1 + 0.382 g2"),
        ((0, 0, 0), "0"),
    ],
)
def test_a_mixture_is_read_and_told(amounts, words):
    seen = sum(amount * part for amount, part in zip(amounts, PARTS.values(), strict=True))
    found = mixture(seen, PARTS)
    assert found == pytest.approx(dict(zip(PARTS, amounts, strict=True)), abs=1e-9)
    assert text(found) == words


@pytest.mark.parametrize(
    ("seen", "parts"),
    [
        (torch.ones(4, 2).double(), PARTS),  # is no mixture
        (PARTS["g0"] * float("nan"), PARTS),
        (PARTS["g0"], {"one": PARTS["g0"], "twice": 2 * PARTS["g0"]}),  # of these it is many
        (PARTS["g0"][0], {name: part[0] for name, part in PARTS.items()}),  # 2 elements: of three parts anything is one
    ],
)
def test_what_is_not_certain_is_no_mixture(seen, parts):
    assert mixture(seen, parts) is None


DRAWING = """\
             there is                 there has to be
  g0     1/3 ===========          1/2 ================
  g1     1/3 ===========          1/6 =====
  g2     1/3 ===========          1/3 ==========="""


def test_a_difference_says_what_is_seen_and_why():
    samples = {"g0": 3, "g1": 1, "g2": 2}
    wanted = {name: n / 6 for name, n in samples.items()}
    right = sum(amount * PARTS[name] for name, amount in wanted.items())
    assert difference(right, wanted, PARTS) is None
    assert difference(right.float().double(), wanted, PARTS) is None  # weighted in float32
    found = difference(sum(PARTS.values()) / 3, wanted, PARTS, mean_mistakes(samples, ranks=3))
    assert found.seen == "1/3 g0 + 1/3 g1 + 1/3 g2" and found.advice.startswith("Every rank counts the same here")
    assert found.drawing == DRAWING
    assert difference(2 * right, wanted, PARTS, [Mistake({"g0": 1}, "no")]).advice is None
    odd = difference(right.index_fill(0, torch.tensor(1), 7.0), wanted, PARTS)
    assert odd.seen.startswith("7 at position 2 and not") and odd.seen.endswith("no adding up of g0, g1, g2 gives")


@pytest.mark.parametrize("number", range(7))
def test_each_mistake_of_a_mean_is_another(number):
    wrong = mean_mistakes({"g0": 3, "g1": 1}, ranks=5)
    assert [m.mixture for m in wrong].count(wrong[number].mixture) == 1


# -- whole tensors, in any order: a right record, changed in one place -----------------------------------------------

EVERYBODY = (0, 1, 2)
SCHEDULE = [[Parcel(1, None, EVERYBODY), Parcel(2, None, EVERYBODY)], [Parcel(0, None, (1,))], [Parcel(0, None, (2,))]]


@pytest.fixture(scope="module")
def right():
    with Clusters() as clusters:
        given = per_rank([provenance(3, rank, 4) for rank in EVERYBODY])
        yield Submission(root.__file__, clusters).run("root_all_reduce", given, world=3)


def with_events(run, events):
    return Run(run.world_size, function=run.function, events=events, results=run.results, sources=run.sources)


def changed(run, number, **values):
    events = list(run.events)
    events[number] = dataclasses.replace(events[number], **values)
    return with_events(run, events)


def found(run, schedule=SCHEDULE):
    return [f.message for f in messages(run, schedule, "the root", in_order=False)]


def sends_of(run, rank):
    return [number for number, e in enumerate(run.events) if e.kind == SEND and e.rank == rank]


def test_any_order_of_the_messages_is_right(right):
    assert found(right) == []
    assert found(right, [SCHEDULE[0][::-1], *SCHEDULE[1:]]) == []
    assert [f.message for f in messages(right, [SCHEDULE[0][::-1], *SCHEDULE[1:]], "the root")] != []


def test_every_message_counts(right):
    for number in [n for rank in EVERYBODY for n in sends_of(right, rank)]:
        e = right.events[number]
        for at in range(4):
            payload = e.payload.clone()
            payload[at] += 1
            assert found(changed(right, number, payload=payload)), (number, at)
        assert found(with_events(right, [other for other in right.events if other is not e]))


def test_what_a_message_should_have_been(right):
    first, second = sends_of(right, 0)
    payload = right.events[second].payload
    partial = changed(right, second, payload=payload - provenance(3, 2, 4))
    assert found(partial) == [
        "rank 0 sent the whole tensor in step 2 with the sum of ranks 0 and 1; "
        "the root sends it with the sum of all ranks there"
    ]
    assert found(changed(right, second, payload=payload // 3)) == [
        "rank 0 sent the average in step 2; the root sends the sum there"
    ]
    assert found(changed(right, second, peer=1)) == ["rank 0 sent to rank 1 in step 2; the root sends to rank 2 there"]
    piece = changed(right, second, payload=payload[:2], bytes=16)
    assert found(piece) == ["rank 0 sent chunk 0 in step 2; the root sends the whole tensor there"]
    fewer = with_events(right, [e for e in right.events if e is not right.events[first]])
    assert found(fewer) == ["rank 0 sent 1 message; the root sends 2: the whole tensor to rank 1 is missing"]
    assert found(right, [SCHEDULE[0], SCHEDULE[1], []]) == [
        "rank 2 sent 1 message; the root sends 0: the whole tensor to rank 0 is one too many"
    ]


def test_every_number_of_a_whole_tensor_counts(right):
    expected = [[Holding(None, EVERYBODY)]] * 3
    assert list(holdings(right, expected)) == []
    for number in [n for n, e in enumerate(right.events) if e.kind == RETURN]:
        (tensor,) = right.events[number].arguments
        for at in range(4):
            wrong = tensor.clone()
            wrong[at] += 1
            (finding,) = holdings(changed(right, number, arguments=(wrong,)), expected)
            assert f"position {at}" in finding.message
        (finding,) = holdings(changed(right, number, arguments=(tensor - provenance(3, 2, 4),)), expected)
        assert "the sum of ranks 0 and 1 in its tensor, position 0; it has to be the sum of all" in finding.message


def test_received_bytes(right):
    assert list(received_bytes(right, [64, 32, 32], ["2 S", "S", "S"], "the root")) == []
    (finding,) = received_bytes(right, [64, 32, 64], ["2 S", "S", "2 S"], "the root")
    assert finding.message == "rank 2 received 32 bytes in all; the root brings it 2 S = 64"


# -- by which way ------------------------------------------------------------------------------------------------------


def ways(*events):
    run = Run(2, events=[Event(1, number, **event) for number, event in enumerate(events)])
    return [f.message for f in added_on_the_way(run, 100, "its gradients")]


ADDED = {"kind": COLLECTIVE, "op": "all_reduce", "bytes": 100}
GATHERED = {"kind": COLLECTIVE, "op": "all_gather", "bytes": 50}


def test_what_is_added_up_on_the_way_is_right():
    assert ways(ADDED, ADDED) == []
    assert ways(ADDED, GATHERED) == []  # half of it: after a reduce-scatter
    assert ways({"kind": SEND, "op": "send", "bytes": 100}) == []
    assert ways({"kind": COLLECTIVE, "op": "all_gather", "bytes": 20, "control": True}) == []  # a count, as an object


def test_what_is_gathered_is_told():
    assert ways(GATHERED, GATHERED) == [
        "rank 1 gave its gradients to all_gather, so that 2 times as much is kept: add up on the way, with all_reduce"
    ]
    for kind, op in ((COLLECTIVE, "all_gather"), (SEND, "send")):
        (said,) = ways({"kind": kind, "op": op, "bytes": 130, "control": True})
        assert said.startswith("rank 1 sent its gradients as objects, pickled")
