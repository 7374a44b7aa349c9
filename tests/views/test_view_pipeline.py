"""The pipeline chart: what becomes of the regions and of a plan, what is drawn and said, and what is refused."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from pipeline_simulated import MS, pipeline_run
from pipelines import train
from simulated import ring_run

from dtcourse import Cluster, pipeline_plan
from dtcourse.events import REGION, Event
from dtcourse.pipeline.actions import Schedule
from dtcourse.pipeline.schedules import gpipe, interleaved, one_f_one_b, pipedream
from dtcourse.pipeline.simulate import peak_activations, simulate
from dtcourse.pipeline.versions import weight_versions
from dtcourse.pipeline.weights import Naive, Stashing
from dtcourse.pipeline.zero_bubble import zero_bubble_h1, zero_bubble_h2
from dtcourse.run import Run
from dtcourse.views.lanes import IDLE
from dtcourse.views.page import write_page
from dtcourse.views.pipeline import FILLS, shade
from dtcourse.views.view import png

SCHEDULES = {
    "gpipe": gpipe(3, 4),
    "1f1b": one_f_one_b(4, 6),
    "interleaved": interleaved(2, 4, 3),
    "zb-h1": zero_bubble_h1(3, 5),
    "zb-h2": zero_bubble_h2(3, 5),
    "pipedream": pipedream(3, 5),
    "fewer micro-batches than stages": one_f_one_b(4, 2),
    "one rank": gpipe(1, 3),
}


def did(rank: int, name: str, microbatch: int, start: float, end: float | None, **labels) -> Event:
    times = {"posted": round(start * MS), "ended": None if end is None else round(end * MS)}
    return Event(rank, 0, REGION, name, labels={"microbatch": microbatch, **labels}, **times)


def two_ranks() -> Run:
    """F0 on rank 0, F0 and B0 on rank 1, B0 on rank 0, with a wait of 1 ms before each but the first; 2 of 12 ms
    of rank 0 and 6 of rank 1."""
    events = [did(0, "forward", 0, 10, 12, stage=0), did(1, "forward", 0, 13, 15, stage=1)]
    return Run(
        2,
        function="mine",
        events=[*events, did(1, "backward", 0, 16, 20, stage=1), did(0, "backward", 0, 21, 22, stage=0)],
    )


def boxes(figure: Figure, part: int = -1) -> dict[str, list[tuple[float, float, int]]]:
    """colour -> (start, end, row) of the boxes in one of the figure's parts."""
    found: dict[str, list[tuple[float, float, int]]] = {}
    for collection in figure.axes[part].collections:
        assert isinstance(collection, PolyCollection)
        for path in collection.get_paths():
            (x0, y0), (x1, _) = path.vertices[0], path.vertices[1]
            found.setdefault(to_hex(collection.get_facecolor()[0]), []).append((round(x0, 6), round(x1, 6), int(y0)))
    return found


def titles(figure: Figure) -> list[str]:
    return [axes.get_title(loc="left") for axes in figure.axes]


# -- measured ----------------------------------------------------------------------------------------------------------


def test_a_box_is_an_action_and_idle_is_what_is_left() -> None:
    shown = two_ranks().pipeline()
    (track,) = shown.tracks
    assert [(b.rank, str(b.action), b.start, b.end) for b in track.boxes] == [
        (0, "F0 of stage 0", 0, 2000),
        (0, "B0 of stage 0", 11_000, 12_000),
        (1, "F0 of stage 1", 3000, 5000),
        (1, "B0 of stage 1", 6000, 10_000),
    ]
    assert (track.idle(0), track.idle(1)) == (0.75, 0.5)
    assert track.bubble == 0.625
    figure = shown.figure()
    drawn = boxes(figure)
    assert drawn[FILLS["F"].lower()] == [(0, 2, 0), (3, 5, 1)]
    assert drawn[FILLS["B"].lower()] == [(11, 12, 0), (6, 10, 1)]
    assert drawn[IDLE["facecolor"]] == [(0, 12, 0), (0, 12, 1)], "what is idle shows through"
    assert titles(figure) == ["measured: bubble 62%"]
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == ["rank 0, idle 75%", "rank 1, idle 50%"]
    assert [text.get_text() for text in figure.axes[0].texts] == ["0"] * 4


def test_an_action_says_for_whom_it_waited() -> None:
    told = {str(box.action): words for box, words in two_ranks().pipeline().tracks[0].told()}
    assert told["F0 of stage 0"] == "Measured: rank 0, F0 of stage 0, from 0 µs to 2 ms."
    assert told["F0 of stage 1"].endswith("from 3 ms to 5 ms; waited 3 ms, 2 ms of them for F0 of stage 0 on rank 0.")
    assert told["B0 of stage 1"].endswith("; idle before it: 1 ms.")
    assert told["B0 of stage 0"].endswith("; waited 9 ms, 8 ms of them for B0 of stage 1 on rank 1.")


def test_who_had_all_that_it_needed_waited_for_nobody() -> None:
    events = [did(0, "forward", 0, 0, 1), did(1, "forward", 1, 0, 4), did(1, "forward", 0, 6, 7)]
    told = [words for _, words in Run(2, events=events).pipeline().tracks[0].told()]
    assert told[-1].endswith("F0 of stage 1, from 6 ms to 7 ms; idle before it: 2 ms.")


def test_of_two_pipelines_side_by_side_nobody_is_named() -> None:
    one = two_ranks().events
    other = [did(e.rank + 2, e.op, 0, e.posted / MS, e.ended / MS, stage=e.rank) for e in one]
    shown = Run(4, events=[*one, *other]).pipeline(simulate(gpipe(2, 1)))
    assert [(list(track.lanes), track.bubble) for track in shown.tracks] == [([0, 1], 0.5), ([0, 1, 2, 3], 0.625)]
    assert all("waited" not in words for _, words in shown.tracks[1].told())


def test_who_makes_it_too_late_is_named_also_where_the_backward_is_split() -> None:
    plan = pipeline_plan(simulate(zero_bubble_h1(2, 2)))
    told = {(box.rank, str(box.action)): words for box, words in plan.tracks[0].told()}
    assert told[0, "I0 of stage 0"].endswith("from 3 to 4; waited 1 for I0 of stage 1 on rank 1.")


@pytest.mark.parametrize("name", SCHEDULES)
def test_measured_and_simulated_agree(name: str) -> None:
    timeline = simulate(SCHEDULES[name])
    plan, measured = pipeline_run(SCHEDULES[name]).pipeline(timeline).tracks
    assert plan.bubble == pytest.approx(timeline.bubble) == measured.bubble
    assert plan.span == pytest.approx(measured.span)
    for mine, its in zip(measured.boxes, plan.boxes, strict=True):
        assert (mine.action, mine.start, mine.end) == (its.action, pytest.approx(its.start), pytest.approx(its.end))


def test_the_plan_is_stretched_until_it_holds_as_much_work() -> None:
    shown = two_ranks().pipeline(simulate(gpipe(2, 1)))
    plan, measured = shown.tracks
    assert sum(map(plan.busy, plan.lanes)) == pytest.approx(9000) == sum(map(measured.busy, measured.lanes))
    assert plan.span == pytest.approx(9000)
    assert (plan.bubble, measured.bubble) == (0.5, 0.625)
    assert titles(shown.figure()) == ["planned: bubble 50%", "measured: bubble 62%"]
    assert len({axes.get_xlim() for axes in shown.figure().axes}) == 1
    assert "planned 50%, measured 62%" in shown.caption


def test_the_last_step_is_shown_unless_another_is_asked_for() -> None:
    run = pipeline_run(one_f_one_b(3, 4), steps=3, late=0.5)
    spans = [run.pipeline(step=step).tracks[0].span for step in (0, 1, 2)]
    assert len(set(spans)) == 3
    assert run.pipeline().tracks[0].span == spans[2]
    assert "Pipeline of train, the last of 3 steps:" in run.pipeline().caption
    assert "Pipeline of train, step 1 of 0 to 2:" in run.pipeline(step=1).caption
    assert "step" not in pipeline_run(gpipe(2, 2)).pipeline().caption
    for beyond in (3, -4):
        with pytest.raises(ValueError, match="train has steps 0 to 2; -1 is the last"):
            run.pipeline(step=beyond)


def test_steps_with_other_numbers_of_micro_batches_are_told_apart() -> None:
    few, many = pipeline_run(gpipe(2, 2)), pipeline_run(one_f_one_b(2, 5))
    for first, second in ((few, many), (many, few)):
        later = [
            did(e.rank, e.op, e.labels["microbatch"], e.posted / MS + 99, e.ended / MS + 99) for e in second.events
        ]
        both = Run(2, events=[*first.events, *later])
        sizes = [both.pipeline(step=step).tracks[0].microbatches for step in (0, 1)]
        assert sizes == [one.pipeline().tracks[0].microbatches for one in (first, second)]


def test_where_no_stage_is_named_it_is_the_rank() -> None:
    run = Run(2, events=[did(0, "forward", 0, 0, 1), did(1, "forward", 0, 1, 2)])
    assert [str(box.action) for box in run.pipeline().tracks[0].boxes] == ["F0 of stage 0", "F0 of stage 1"]


def test_an_action_that_never_ended_is_drawn_to_the_end_and_said() -> None:
    run = Run(
        2,
        function="mine",
        seconds=0.02,
        failure="RankDied",
        events=[*two_ranks().events[:2], did(1, "backward", 0, 16, None)],
    )
    shown = run.pipeline(simulate(gpipe(2, 1)))
    assert "Never ended: B0 of stage 1 on rank 1." in shown.caption
    assert "never ended" in [text.get_text() for text in shown.figure().legends[0].get_texts()]
    assert shown.tracks[1].span == 20_000
    assert any("from 6 ms to the end: never ended" in words for _, words in shown.tracks[1].told())


# -- planned -----------------------------------------------------------------------------------------------------------


def test_a_plan_alone_is_in_the_unit_of_its_costs() -> None:
    shown = pipeline_plan(simulate(gpipe(3, 4)))
    assert shown.figure().axes[0].get_xlabel() == "time, in the unit of the plan's costs"
    assert boxes(shown.figure())[FILLS["B"].lower()][:2] == [(10, 12, 0), (12, 14, 0)]
    assert shown.tracks[0].bubble == pytest.approx(2 / 6)
    assert shown.caption.startswith("Plan of a pipeline: 3 ranks, 4 micro-batches.")


def test_several_plans_lie_on_one_axis() -> None:
    shown = pipeline_plan({"GPipe": simulate(gpipe(4, 6)), "ZB-H1": simulate(zero_bubble_h1(4, 6))})
    assert titles(shown.figure()) == ["GPipe: bubble 33%", "ZB-H1: bubble 14%"]
    limits = [axes.get_xlim() for axes in shown.figure().axes]
    assert limits[0] == limits[1], "also the shorter one's axis holds the longer one"
    assert limits[0][1] >= shown.tracks[0].span > shown.tracks[1].span
    names = [text.get_text() for text in shown.figure().legends[0].get_texts()]
    assert names == ["F forward", "B backward", "I input half", "W weight half", "idle"]


def test_a_rank_s_stages_have_letters_and_shades() -> None:
    shown = pipeline_plan(simulate(interleaved(2, 2, 2)))
    assert {text.get_text() for text in shown.figure().axes[0].texts} == {"0a", "1a", "0b", "1b"}
    assert set(boxes(shown.figure())) - {IDLE["facecolor"]} == {shade(kind, part) for kind in "FB" for part in (0, 1)}
    assert len(boxes(shown.figure())) == 5, "two shades of two kinds, and idle"
    assert "a, b: a rank's stages, in order" in [text.get_text() for text in shown.figure().legends[0].get_texts()]


def test_what_is_in_one_pipeline_stays_apart_in_grey() -> None:
    def grey(kind: str, part: float) -> float:
        red, green, blue = to_rgb(shade(kind, part))
        return 0.299 * red + 0.587 * green + 0.114 * blue

    for others in ("B", "IW"):
        darkest = min(grey(kind, part) for kind in others for part in (0, 0.5, 1))
        assert darkest - max(grey("F", part) for part in (0, 0.5, 1)) > 0.15
    assert grey("W", 0) - grey("I", 0) > 0.15


# -- as a display ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_notebook_gets_widget_picture_and_words(name: str) -> None:
    data, metadata = pipeline_run(SCHEDULES[name], late=0.2).pipeline(simulate(SCHEDULES[name]))._repr_mimebundle_()
    assert set(data) == {"application/vnd.jupyter.widget-view+json", "image/png", "text/plain"}
    assert data["image/png"].startswith("iVBOR")
    assert len(data["image/png"]) < 300_000
    assert "Bubble, the idle part of all ranks' time" in data["text/plain"]
    assert metadata["image/png"]["width"] > 100


def test_eight_ranks_and_32_micro_batches_stay_readable() -> None:
    schedule = one_f_one_b(8, 32)
    shown = pipeline_run(schedule, steps=3, late=0.3).pipeline(simulate(schedule))
    figure = shown.figure()
    backwards = [text for text in figure.axes[1].texts if text.get_fontsize() >= 6]
    assert len(backwards) == 8 * 32, "the number in every backward can be read"
    assert len(png(figure)) < 300_000
    assert len(str(shown.data)) < 250_000


def test_the_page_has_the_pipeline_and_its_plan(tmp_path: Path) -> None:
    run = pipeline_run(gpipe(2, 3))
    text = run.page(tmp_path / "run.html").read_text()
    assert '<div id="pipeline">' in text
    assert "http" not in text
    assert '"name":"planned"' not in text
    assert '"name":"planned"' in run.page(tmp_path / "plan.html", plan=simulate(gpipe(2, 3))).read_text()
    assert '<div id="pipeline">' not in write_page(ring_run(), tmp_path / "ring.html").read_text()


# -- refused -----------------------------------------------------------------------------------------------------------


def test_a_run_without_a_pipeline_is_told_what_to_write() -> None:
    with pytest.raises(ValueError, match="ring_all_reduce has no actions of a pipeline") as problem:
        ring_run().pipeline()
    assert 'with region("forward", microbatch=m, stage=s):' in str(problem.value)
    with pytest.raises(ValueError, match=r"regions it has: forward"):
        Run(1, events=[Event(0, 0, REGION, "forward", posted=1, ended=2, labels={"step": 1})]).pipeline()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (gpipe(3, 4), "3 ranks, 3 stages, 4 micro-batches"),
        (gpipe(2, 5), "2 ranks, 2 stages, 5 micro-batches"),
        (zero_bubble_h1(2, 4), "(F I W)"),
        (interleaved(2, 4, 2), "2 ranks, 4 stages, 4 micro-batches"),
    ],
)
def test_a_plan_of_something_else_is_refused(wrong: Schedule, said: str) -> None:
    with pytest.raises(ValueError, match="the plan is for") as problem:
        pipeline_run(one_f_one_b(2, 4)).pipeline(simulate(wrong))
    assert said in str(problem.value)
    assert "train did 2 ranks, 2 stages, 4 micro-batches (B F)" in str(problem.value)
    assert "simulate(schedule)" in str(problem.value)


def test_stages_on_other_ranks_are_told() -> None:
    run = pipeline_run(interleaved(2, 2, 2))
    other = {2: 3, 3: 2}  # up and down again: stages 0 and 3 on rank 0, 1 and 2 on rank 1
    for e in run.events:
        e.labels["stage"] = other.get(e.labels["stage"], e.labels["stage"])
    with pytest.raises(ValueError, match="placed on the ranks in another way"):
        run.pipeline(simulate(interleaved(2, 2, 2)))


@pytest.mark.parametrize("plan", [gpipe(2, 4), 27, "1F1B", {}])
def test_what_is_no_plan_is_refused(plan: object) -> None:
    with pytest.raises(TypeError, match=r"a plan is what simulate\(schedule\) returns"):
        pipeline_run(gpipe(2, 4)).pipeline(plan)
    with pytest.raises(TypeError, match=r"a plan is what simulate\(schedule\) returns"):
        pipeline_plan(plan)


# -- on real ranks -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(3) as found:
        yield found


@pytest.mark.parametrize(
    "schedule", [one_f_one_b(3, 4), interleaved(3, 3, 2), zero_bubble_h1(3, 4)], ids=["1F1B", "interleaved", "ZB-H1"]
)
def test_real_ranks_and_their_file_draw_the_same(cluster: Cluster, schedule: Schedule, tmp_path: Path) -> None:
    run, plan = cluster.run(train, schedule, 2), simulate(schedule)
    shown = run.pipeline(plan)
    assert "the last of 2 steps" in shown.caption
    for rank, lane in shown.tracks[1].lanes.items():
        assert tuple(tuple(box.action) for box in lane) == tuple(map(tuple, schedule.ranks[rank]))
    assert shown.tracks[0].bubble == pytest.approx(plan.bubble)
    assert 0 < shown.tracks[1].bubble < 1
    kept = run.activations(plan)
    assert tuple(kept.peaks.values()) == peak_activations(schedule) == tuple(kept.planned.values())
    again = Run.load(run.save(tmp_path / "x.run"))
    assert again.pipeline(plan).data == shown.data
    assert repr(again.activations(plan)) == repr(kept)


@pytest.mark.parametrize("policy", [Naive, Stashing])
def test_the_versions_of_real_ranks_are_those_of_the_schedule(cluster: Cluster, policy: type[Naive]) -> None:
    schedule = pipedream(3, 6)
    run = cluster.run(train, schedule, 2, policy)
    for step in (0, 1):
        shown = run.versions(step)
        for stage, versions in enumerate(weight_versions(schedule)):
            for microbatch, expected in enumerate(versions):
                met, before = shown.met[stage][microbatch], 6 * step
                assert met.forward == before + expected.forward
                assert met.updated == before + expected.backward
                assert met.backward == (met.updated if policy is Naive else met.forward)
        assert shown.most == {0: 2, 1: 1, 2: 0}
        assert shown.mixed == (10 if policy is Naive else 0)
    assert any("version 6 of the weights" in words for _, words in run.pipeline().tracks[0].told())
