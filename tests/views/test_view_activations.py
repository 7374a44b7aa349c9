"""The activations over time, and the versions of the weights: what is counted, drawn and said, and what is refused."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.axes import Axes
from pipeline_simulated import MS, pipeline_run
from simulated import ring_run

from dtcourse.events import REGION, Event
from dtcourse.pipeline.schedules import gpipe, interleaved, one_f_one_b, pipedream
from dtcourse.pipeline.simulate import peak_activations, simulate
from dtcourse.pipeline.zero_bubble import zero_bubble_h1, zero_bubble_h2
from dtcourse.run import Run
from dtcourse.views.activations import Activations
from dtcourse.views.versions import Met, Versions
from dtcourse.views.view import WARN

SCHEDULES = [gpipe(3, 4), one_f_one_b(4, 6), interleaved(2, 4, 3), zero_bubble_h1(3, 5), zero_bubble_h2(3, 6)]


def line(axes: Axes, name: str) -> list[tuple[float, float]]:
    (found,) = (one for one in axes.lines if one.get_label() == name)
    return list(zip(found.get_xdata(), found.get_ydata(), strict=True))


def act(rank: int, name: str, microbatch: int, start: float, end: float, **labels) -> Event:
    labels |= {"microbatch": microbatch, "stage": rank}
    return Event(rank, 0, REGION, name, posted=round(start * MS), ended=round(end * MS), labels=labels)


# -- activations -------------------------------------------------------------------------------------------------------


def test_an_activation_counts_from_its_forward_s_start_to_its_backward_s_end() -> None:
    events = [act(0, "forward", 0, 5, 6), act(0, "forward", 1, 7, 8), act(0, "backward", 0, 9, 11)]
    shown = Run(1, function="mine", events=[*events, act(0, "backward", 1, 13, 14)]).activations()
    (axes,) = shown.figure().axes
    assert line(axes, "measured") == [(0, 1), (2, 2), (6, 1), (9, 0)]
    assert shown.caption.startswith("Activations kept by mine, at most: rank 0 2. ")


def test_where_the_backward_is_split_it_goes_with_the_weight_half() -> None:
    events = [act(0, "forward", 0, 0, 1), act(0, "input", 0, 1, 2), act(0, "weight", 0, 4, 5)]
    assert line(Run(1, events=events).activations().figure().axes[0], "measured") == [(0, 1), (5, 0)]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=["gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2"])
def test_the_peaks_are_those_of_the_schedule(schedule) -> None:
    shown = pipeline_run(schedule, steps=2, late=0.5).activations(simulate(schedule))
    assert tuple(shown.peaks.values()) == peak_activations(schedule) == tuple(shown.planned.values())
    figure = shown.figure()
    for axes, most in zip(figure.axes, shown.peaks.values(), strict=True):
        assert max(count for _, count in line(axes, "measured")) == most
        assert max(count for _, count in line(axes, "planned")) == most
        assert [text.get_text() for text in axes.texts] == [f"at most {most} (planned {most})"]


def test_more_than_planned_is_said_in_red() -> None:
    """All forwards first, where the plan was 1F1B."""
    shown = pipeline_run(gpipe(2, 4)).activations(simulate(one_f_one_b(2, 4)))
    texts = [axes.texts[0] for axes in shown.figure().axes]
    assert [text.get_text() for text in texts] == ["at most 4 (planned 2)", "at most 4 (planned 1)"]
    assert [text.get_color() for text in texts] == [WARN, WARN]
    assert "rank 1 4 (planned 1)" in shown.caption


def test_without_a_plan_there_is_one_line() -> None:
    shown = pipeline_run(gpipe(2, 4)).activations()
    assert [one.get_label() for one in shown.figure().axes[0].lines] == ["measured"]
    assert not shown.figure().legends
    assert "planned" not in shown.caption


# -- versions ----------------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(stages=st.integers(1, 5), microbatches=st.integers(1, 9))
def test_the_staleness_of_a_stage_is_the_number_of_stages_after_it(stages: int, microbatches: int) -> None:
    shown = pipeline_run(pipedream(stages, microbatches), steps=2).versions()
    for stage, found in shown.met.items():
        ages = [one.staleness for _, one in sorted(found.items())]
        assert ages == [min(microbatch, stages - 1 - stage) for microbatch in range(microbatches)]
        assert found[0].forward == microbatches, "the second step begins with the updates of the first"
    assert list(shown.met) == list(range(stages))


def stashed(forward: int, backward: int) -> Run:
    """One stage; both forwards come first."""
    versions = {"forward": forward, "backward": backward}
    order = [("forward", 0, 4), ("forward", 1, 4), ("backward", 0, 4), ("backward", 1, None)]
    return Run(
        1,
        function="mine",
        events=[
            act(0, name, microbatch, i, i + 1, version=versions[name] if version is None else version)
            for i, (name, microbatch, version) in enumerate(order)
        ],
    )


@pytest.mark.parametrize(("backward", "mixed"), [(4, 0), (5, 1)])
def test_a_stashed_backward_is_as_stale_and_not_mixed(backward: int, mixed: int) -> None:
    shown = stashed(4, backward).versions()
    assert shown.met == {0: {0: Met(4, 4, 4), 1: Met(4, backward, 5)}}
    assert (shown.most, shown.mixed) == ({0: 1}, mixed)
    axes = shown.figure().axes[0]
    assert len([patch for patch in axes.patches if patch.get_gid() == "edge"]) == mixed
    texts = [text.get_text() for text in axes.texts]
    assert texts == ["0", "F 4, B 4", "1", f"F 4, B {backward}"]
    assert ("Black edge" in shown.figure().get_supxlabel()) == bool(mixed)
    assert f"met another version than their forward: {mixed or 'none'} of 2." in shown.caption


def test_many_micro_batches_are_shades_without_numbers() -> None:
    few, many = (pipeline_run(pipedream(4, n)).versions().figure() for n in (32, 100))
    assert {text.get_text() for text in few.axes[0].texts} == {"0", "1", "2", "3"}
    assert len(few.axes[0].texts) == 4 * 32
    assert not many.axes[0].texts
    assert "The darker, the more" in many.get_supxlabel()


def test_without_versions_it_says_where_they_come_from() -> None:
    with pytest.raises(ValueError, match="not all actions of train say the version of their weights") as problem:
        pipeline_run(gpipe(2, 2)).versions()
    assert 'region("forward", microbatch=m, stage=s, version=v)' in str(problem.value)
    with pytest.raises(ValueError, match="no actions of a pipeline"):
        ring_run().versions()
    alone = act(0, "forward", 0, 0, 1, version=0)
    with pytest.raises(ValueError, match="no backward has ended"):
        Run(1, events=[alone]).versions()
    with pytest.raises(ValueError, match="rank 0 did B1 of stage 0, and no forward of it in the same step"):
        Run(1, events=[alone, act(0, "backward", 1, 1, 2, version=0)]).versions()


@pytest.mark.parametrize("view", [Activations, Versions])
def test_a_notebook_gets_picture_and_words(view: type) -> None:
    data, metadata = view(pipeline_run(pipedream(3, 4)))._repr_mimebundle_()
    assert data["image/png"].startswith("iVBOR")
    assert "train" in data["text/plain"]
    assert metadata["image/png"]["width"] > 100


def test_the_page_has_both_where_there_are_versions(tmp_path: Path) -> None:
    pages = [pipeline_run(make(3, 4)).page(tmp_path / "run.html").read_text() for make in (gpipe, pipedream)]
    assert ["<h2>The activations that each rank kept</h2>" in page for page in pages] == [True, True]
    assert ["<h2>How old the weights were</h2>" in page for page in pages] == [False, True]
