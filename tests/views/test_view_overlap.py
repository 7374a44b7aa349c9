"""The overlap view: what counts as communication and as backward, the figures, what is drawn and what is refused."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_hex, to_rgb
from overlap_simulated import did, random_run, reduced, two_ranks
from simulated import ring_run
from torch import nn

from dtcourse import Cluster, overlap, region
from dtcourse.collectives.ring import ring_all_reduce
from dtcourse.events import COLLECTIVE
from dtcourse.run import Run
from dtcourse.views.exchange import EXPOSED, OVERLAPPED, steps
from dtcourse.views.overlap import FILLS
from dtcourse.views.page import write_page


def counted(run: Run, rank: int, since: int = 0, tick: int = 1000) -> tuple[int, int]:
    """(overlapped, all) ticks of a rank's communication, by looking at the recorded times tick by tick."""
    spans = {name: [(e.posted, e.ended) for e in run.regions(name, rank)] for name in ("backward", "all-reduce")}

    def during(name: str, time: int) -> bool:
        return any(start <= time < end for start, end in spans[name])

    end = max(end for _, end in spans["all-reduce"])
    sent = [at for at in range(since, end, tick) if during("all-reduce", at)]
    return sum(during("backward", at) for at in sent), len(sent)


# -- the figures -------------------------------------------------------------------------------------------------------


def test_the_share_is_what_lies_under_backward() -> None:
    shown = two_ranks().overlap()
    assert shown.share == {0: pytest.approx(8 / 12), 1: pytest.approx(6 / 10)}
    assert shown.share_of_all == pytest.approx(14 / 22)
    assert shown.exposed == {0: pytest.approx(0.004), 1: pytest.approx(0.004)}
    assert shown.seconds == pytest.approx(0.030)


@pytest.mark.parametrize("seed", range(5))
def test_it_agrees_with_the_recorded_times(seed: int) -> None:
    run = random_run(seed, steps=1)
    shown = run.overlap()
    counts = [counted(run, rank) for rank in range(3)]
    for rank, (inside, whole) in enumerate(counts):
        assert shown.share[rank] == pytest.approx(inside / whole, abs=1e-3)
    assert shown.share_of_all == pytest.approx(sum(i for i, _ in counts) / sum(w for _, w in counts), abs=1e-3)


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50)), min_size=1, max_size=8))
def test_exposed_is_what_theory_says(buckets: list[tuple[int, int]]) -> None:
    """A bucket begins when it is full and the one before is through; the last is full when backward is over."""
    full, through, events = 0, 0, []
    for number, (computing, sending) in enumerate(buckets):
        full += computing
        start = max(full, through)
        through = start + sending
        events.append(reduced(0, number, start, through))
    (shown,) = steps(Run(1, events=[did(0, "backward", 0, full), *events]))
    assert shown.span == pytest.approx(1000 * through)
    assert shown.spent(0, EXPOSED) == pytest.approx(1000 * (through - full))
    assert shown.spent(0, EXPOSED) >= 1000 * buckets[-1][1], "the last bucket has nothing to hide behind"


@pytest.mark.parametrize("seed", range(3))
def test_messages_under_an_all_reduce_are_not_counted_again(seed: int) -> None:
    run = random_run(seed)
    alone = Run(3, function="train", events=[e for e in run.events if e.kind != "send"])
    bare = Run(3, function="train", events=[e for e in run.events if e.op != "all-reduce"])
    assert run.overlap().share == alone.overlap().share
    assert bare.overlap().share == alone.overlap().share, "without regions the messages tell"


def test_what_runs_at_the_same_time_counts_once() -> None:
    sends = [did(0, "send", start, end, "send", peer=1, group=(0, 1)) for start, end in ((2, 6), (3, 5), (4, 8))]
    shown = Run(2, events=[did(0, "backward", 0, 7), *sends]).overlap()
    (lane,) = shown.steps[""].communicating.values()
    assert [(one.kind, one.start, one.end) for one in lane] == [
        (OVERLAPPED, 2000, 6000),
        (OVERLAPPED, 6000, 7000),
        (EXPOSED, 7000, 8000),
    ]


def test_control_traffic_does_not_count() -> None:
    votes = [did(0, "send", 1, 2, "send", peer=1, control=True), did(0, "barrier", 3, 4, COLLECTIVE, control=True)]
    with pytest.raises(ValueError, match="mine communicated nothing in this step"):
        Run(1, function="mine", events=[did(0, "backward", 0, 9), *votes]).overlap()


def test_a_rank_without_a_batch_has_only_communication() -> None:
    shown = Run(3, events=[*two_ranks().events, reduced(2, 0, 4, 26), reduced(2, 1, 26, 34)]).overlap()
    assert shown.share[2] == 0.0
    assert shown.steps[""].computing[2] == ()
    assert shown.share_of_all == pytest.approx(14 / (22 + 30))


def test_who_waits_inside_backward_computes_nothing() -> None:
    buckets = [reduced(0, 0, 4, 10), reduced(0, 1, 10, 16)]
    passes, waits = [did(0, "backward", 0, 18)], [did(0, "wait", 8, 10), did(0, "wait", 10, 16)]
    later = [did(0, "backward", 20, 24), reduced(0, 0, 23, 25)]
    assert Run(1, events=[*passes, *buckets]).overlap().share_of_all == 1.0
    shown = Run(1, events=[*passes, *buckets, *waits, did(1, "wait", 0, 18), *later]).overlap(0)
    assert shown.share_of_all == pytest.approx(4 / 12)
    assert [(one.start, one.end) for one in shown.steps[""].computing[0]] == [(0, 8000), (16_000, 18_000)]


def test_who_sends_in_the_thread_that_computes_overlaps_nothing_and_says_so() -> None:
    inside = [did(0, "backward", 0, 18), reduced(0, 0, 4, 10)]
    assert Run(1, events=inside).overlap().share_of_all == 1.0
    assert Run(1, events=[*inside, did(0, "wait", 4, 10)]).overlap().share_of_all == 0.0


def test_stock_ddp_s_backward_ends_with_the_last_collective_begun_in_it() -> None:
    calls = [did(0, "all_reduce", 4, 10, COLLECTIVE), did(0, "all_reduce", 8, 16, COLLECTIVE)]
    assert Run(1, events=[did(0, "backward", 0, 16), *calls]).overlap().share_of_all == pytest.approx(4 / 12)


# -- steps -------------------------------------------------------------------------------------------------------------


def test_the_last_step_is_shown_unless_another_is_asked_for() -> None:
    run = random_run(0)
    spans = [run.overlap(step).seconds for step in (0, 1, 2)]
    assert len(set(spans)) == 3
    assert run.overlap().seconds == spans[2]
    assert run.overlap().title == "Overlap in train, the last of 3 steps"
    assert run.overlap(1).title == "Overlap in train, step 1 of 0 to 2"
    assert two_ranks().overlap().title == "Overlap in train"
    for beyond in (3, -4):
        with pytest.raises(ValueError, match="train has steps 0 to 2; -1 is the last"):
            run.overlap(beyond)


def test_every_step_has_its_own_passes_and_buckets() -> None:
    for step in steps(random_run(1)):
        assert [[one.kind for one in lane] for lane in step.computing.values()] == [["forward", "backward"]] * 3
        assert [{one.bucket for one in lane} for lane in step.communicating.values()] == [{0, 1, 2, 3}] * 3


def test_what_comes_before_the_first_pass_is_no_step() -> None:
    early = [did(rank, "broadcast", 0, 3, COLLECTIVE) for rank in (0, 1)]
    assert Run(2, events=[*early, *two_ranks().events]).overlap().seconds == two_ranks().overlap().seconds


def test_passes_without_communication_between_them_are_one_step() -> None:
    passes = [did(0, name, at, at + 2) for at in (0, 4) for name, at in (("forward", at), ("backward", at + 2))]
    (step,) = steps(Run(1, events=[*passes, reduced(0, 0, 7, 9)]))
    assert [one.kind for one in step.computing[0]] == ["forward", "backward"] * 2


def test_who_has_no_batch_in_a_step_is_in_it_all_the_same() -> None:
    run = random_run(2)
    last = sorted((e for e in run.events if e.rank == 1 and e.op in ("forward", "backward")), key=lambda e: e.posted)[
        -2:
    ]
    found = steps(Run(3, events=[e for e in run.events if e not in last]))
    assert [len(step.computing[1]) for step in found] == [2, 2, 0]
    assert [len({one.bucket for one in step.communicating[1]}) for step in found] == [4, 4, 4]


# -- as a display ------------------------------------------------------------------------------------------------------


def test_what_is_drawn_and_said() -> None:
    shown = overlap({"mine": two_ranks(), "theirs": two_ranks()})
    figure = shown.figure()
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "mine: 64% of the communication overlapped, 30 ms",
        "theirs: 64% of the communication overlapped, 30 ms",
    ]
    names = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert names == ["rank 0 computes", "overlapped 67%", "rank 1 computes", "overlapped 60%"]
    drawn = {}
    for collection in figure.axes[0].collections:
        for path in collection.get_paths():
            (x0, y0), (x1, _) = path.vertices[0], path.vertices[1]
            fill = to_hex(collection.get_facecolor()[0])
            drawn.setdefault(fill, []).append((round(x0, 6), round(x1, 6), int(y0)))
    assert drawn[FILLS["backward"].lower()] == [(5, 25, 0), (7, 26, 2)]
    assert drawn[FILLS[EXPOSED].lower()] == [(25, 29, 1), (26, 30, 3)]
    assert [t.get_text() for t in figure.legends[0].get_texts()] == ["forward", "backward", OVERLAPPED, EXPOSED, "idle"]
    assert "mine 64% in 30 ms, theirs 64% in 30 ms. Overlapped (theirs): rank 0 67%, rank 1 60%." in shown.caption
    told = [shape.told for shape in shown._chart.shapes]
    assert "Rank 0, all-reduce of bucket 1, exposed: from 25 ms to 29 ms." in told


def test_a_notebook_gets_widget_picture_and_words() -> None:
    data, metadata = random_run(0).overlap()._repr_mimebundle_()
    assert set(data) == {"application/vnd.jupyter.widget-view+json", "image/png", "text/plain"}
    assert len(data["image/png"]) < 300_000
    assert metadata["image/png"]["width"] > 100


def test_what_lies_in_one_lane_stays_apart_in_grey() -> None:
    def grey(kind: str) -> float:
        red, green, blue = to_rgb(FILLS[kind])
        return 0.299 * red + 0.587 * green + 0.114 * blue

    assert abs(grey("forward") - grey("backward")) > 0.15
    assert abs(grey(OVERLAPPED) - grey(EXPOSED)) > 0.15


def test_what_never_ended_is_drawn_to_the_end_and_said() -> None:
    run = Run(1, events=[did(0, "backward", 0, 5), reduced(0, 0, 3, None)], seconds=0.02, failure="RankDied")
    shown = run.overlap()
    assert shown.seconds == pytest.approx(0.02)
    assert any("to the end: never ended" in shape.told for shape in shown._chart.shapes)
    assert "never ended" in [text.get_text() for text in shown.figure().legends[0].get_texts()]


def test_the_page_has_it_where_there_is_something_to_overlap(tmp_path: Path) -> None:
    assert '<div id="overlap">' in two_ranks().page(tmp_path / "run.html").read_text()
    assert '<div id="overlap">' not in write_page(ring_run(), tmp_path / "ring.html").read_text()
    last = did(0, "backward", 50, 60)
    spoilt = Run(2, function="train", events=[*two_ranks().events, last])
    assert '<div id="overlap">' in spoilt.page(tmp_path / "more.html").read_text()


# -- refused -----------------------------------------------------------------------------------------------------------


def test_a_run_without_backward_is_told_what_to_write() -> None:
    with pytest.raises(ValueError, match="ring_all_reduce has no backward passes") as problem:
        ring_run().overlap()
    assert 'with region("backward"):' in str(problem.value)
    assert "regions it has: all-gather, reduce-scatter" in str(problem.value)


def test_runs_need_names() -> None:
    with pytest.raises(TypeError, match=r"runs have names: .*not a list"):
        overlap([two_ranks()])
    with pytest.raises(ValueError, match="there is no run to draw"):
        overlap({})


# -- on real ranks -----------------------------------------------------------------------------------------------------


def buckets_in_a_thread(overlapped: bool) -> None:
    buckets = [torch.ones(1000) for _ in range(3)]

    def send() -> None:
        for number, bucket in enumerate(buckets):
            time.sleep(0.01)
            with region("all-reduce", bucket=number):
                ring_all_reduce(bucket)
                time.sleep(0.005)

    thread = threading.Thread(target=send)
    with region("backward"):
        if overlapped:
            thread.start()
        time.sleep(0.035)
    if not overlapped:
        thread.start()
    thread.join()


def stock_ddp() -> None:
    layers = nn.Sequential(nn.Linear(50, 50), nn.Linear(50, 50))
    model = nn.parallel.DistributedDataParallel(layers, bucket_cap_mb=0.005)
    for _ in range(3):  # in the second one it builds its buckets anew
        with region("forward"):
            loss = model(torch.ones(2, 50)).sum()
        with region("backward"):
            loss.backward()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(2) as found:
        yield found


def test_real_ranks_and_their_file_tell_the_same(cluster: Cluster, tmp_path: Path) -> None:
    run = cluster.run(buckets_in_a_thread, True)
    shown = run.overlap()
    for rank in range(2):
        inside, whole = counted(run, rank, since=run.span[0])
        assert 0 < inside < whole
        assert shown.share[rank] == pytest.approx(inside / whole, abs=0.01)
    again = Run.load(run.save(tmp_path / "x.run")).overlap()
    assert again.data == shown.data
    assert repr(again) == repr(shown)
    assert cluster.run(buckets_in_a_thread, False).overlap().share == {0: 0.0, 1: 0.0}


def test_stock_ddp_has_its_collectives(cluster: Cluster) -> None:
    shown = cluster.run(stock_ddp).overlap()
    assert "the last of 3 steps" in shown.caption
    assert 0 <= shown.share_of_all < 1, "it waits for the last bucket inside its backward"
    assert {one.what.split(",")[0] for one in shown.steps[""].communicating[0]} == {"all_reduce"}
